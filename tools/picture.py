"""Drawing of the documentation's pictures: see tools/picture."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.analysis.usage.annotation import annotate
from pytorch_alloctrace.analysis.usage.live_memory import live_memory
from pytorch_alloctrace.analysis.usage.tree import tree_at
from pytorch_alloctrace.reading.following import Following
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.report.annotation import write_annotation
from pytorch_alloctrace.report.composition import write_position
from pytorch_alloctrace.report.first_screen import write_first_screen
from pytorch_alloctrace.report.live import Rates, write_view
from pytorch_alloctrace.report.screen import Screen
from pytorch_alloctrace.report.site_names import SiteNames
from pytorch_alloctrace.report.tree import write_tree
from pytorch_alloctrace.report.units import Span

DOCS = Path("docs")
LIVE_STEPS = 40
NOTEBOOK = (
    "import torch, pytorch_alloctrace as alloctrace\n%load_ext pytorch_alloctrace",
    "layer = torch.nn.Linear(1024, 4096, device='cuda')\noutputs = []",
    "%%alloctrace\n"
    "for _ in range(20):\n"
    "    x = torch.randn(256, 1024, device='cuda')\n"
    "    outputs.append(layer(x))\n"
    "    alloctrace.step()",
)


def draw(name: str, title: str, write: Callable[[Screen], None], width: int = 92) -> None:
    """Draw the terminal output of a command, as docs/NAME.svg."""
    console = Console(record=True, width=width, force_terminal=True, color_system="truecolor", file=io.StringIO())
    write(Screen(console))
    svg = console.export_svg(title=title, unique_id=name, theme=SVG_EXPORT_THEME)
    # Without @font-face the picture fetches no font from a third-party server and uses the reader's monospaced font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (DOCS / f"{name}.svg").write_text(svg)


def draw_live() -> None:
    """Draw docs/live.svg: `alloctrace live` while the demo runs."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "demo.alloctrace")
        command = ["-m", "pytorch_alloctrace", "run", "--output", str(trace), "tools/demo_program.py"]
        program = subprocess.Popen(["tools/simcuda/run", sys.executable, *command], stdout=subprocess.DEVNULL)
        try:
            view = None
            while view is None or view.seen.steps < LIVE_STEPS:
                if program.poll() is not None:
                    raise RuntimeError("the demo ended before its picture was drawn")
                time.sleep(0.01)
                if view is None and trace.exists():
                    following = Following(trace)
                    following.read_spool_at(f"{trace}.spool")
                if trace.exists():
                    view = following.advance()
            final, rates, header = view, Rates.between(None, view), following.header
        finally:
            program.kill()
            program.wait()
    draw("live", f"alloctrace live {trace.name}", lambda screen: write_view(final, rates, trace.name, header, screen))


def draw_notebook() -> str:
    """Draw docs/notebook.png, run on the simulated device; return why it cannot be drawn, or ""."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    python = os.environ.get("NBCONVERT", sys.executable)
    imports = subprocess.run([python, "-c", "import nbconvert, ipykernel, torch"], capture_output=True, check=False)
    if browser is None or imports.returncode != 0:
        return "no notebook: chromium, or a Python with nbconvert, ipykernel and torch, is missing"
    cells = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "source": text, "outputs": []}
        for text in NOTEBOOK
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        (folder / "notebook.ipynb").write_text(json.dumps(book))
        command = [python, "-m", "nbconvert", "--execute", "--to", "html", "notebook.ipynb"]
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "IPYTHONDIR": str(folder / "ipython")}
        run = Path("tools/simcuda/run").absolute()
        subprocess.run([run, *command], cwd=folder, env=environment, check=True)
        page = folder / "notebook.html"
        # Remove scripts from third-party servers; only formulas need them, and the notebook has none.
        page.write_text(re.sub(r"<script[^>]*src=.*?</script>", "", page.read_text(), flags=re.DOTALL))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1010,848"]
        picture = (DOCS / "notebook.png").absolute()
        subprocess.run([browser, *options, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)
    return ""


def main(path: str) -> None:
    # The command that the first screen names is then "alloctrace", not the path of this Python.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    trace = RecordedTrace(path)
    names = SiteNames(str(trace.header["working_directory"]))

    def draw_first_screen(screen: Screen) -> None:
        write_first_screen(summarize(trace, top=5), screen)
        screen.blank()  # otherwise, the picture cuts the last line

    draw("verdict", f"alloctrace {path}", draw_first_screen)

    def tree(screen: Screen) -> None:
        memory = live_memory(trace, "peak")
        write_position(memory, trace.begin_ns, screen)
        call_tree = tree_at(trace, "peak", device=memory.device)
        write_tree(call_tree, screen, names, None, all_frames=False)

    draw("tree", f"alloctrace peak {path} --tree", tree)
    program = "demo_program.py"
    annotation = annotate(trace, program)
    draw(
        "annotate",
        f"alloctrace annotate {path} {program}",
        lambda screen: write_annotation(annotation, Span(), trace.begin_ns, screen, names),
        width=118,
    )
    draw_live()
    print(draw_notebook() or "drawn", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
