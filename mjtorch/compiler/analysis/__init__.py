"""What passes ask of programs: dependences, lifetimes, costs."""
