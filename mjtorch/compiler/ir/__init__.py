"""The intermediate representation: its nodes, what is done with all of them alike, its text, its meaning."""
