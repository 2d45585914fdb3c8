"""How much memory there is, as the system's files say."""

from pathlib import Path

import pytest

from mjtorch import memory


@pytest.mark.parametrize(
    "files, free",
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 5 kB\nSwapFree: 1 kB\n"}, 6 * 1024),
        (
            {
                "proc/meminfo": "MemAvailable: 5 kB\n",
                "proc/self/cgroup": "0::/a/b\n",
                "group/a/b/memory.max": "max\n",
                "group/a/b/memory.current": "5\n",
                "group/a/memory.max": "3000\n",
                "group/a/memory.current": "2000\n",
                "group/a/memory.stat": "anon 1500\ninactive_file 500\n",
            },
            1500,
        ),
        (
            {
                "proc/meminfo": "MemAvailable: 5 kB\n",
                "proc/self/cgroup": "3:cpu:/x\n2:memory:/docker\n",
                "group/memory/memory.limit_in_bytes": "3000",
                "group/memory/memory.usage_in_bytes": "4000",
                "group/memory/memory.stat": "",
            },
            0,
        ),
    ],
)
def test_what_is_available(files: dict[str, str], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "PROCESSES", tmp_path / "proc")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "group")
    assert memory.available() == free
    monkeypatch.setattr(memory, "PROCESSES", tmp_path / "nowhere")
    assert memory.available() is None or memory.available() > 2**20
