"""Draws pictures of what `scripts/pictures run` left in a folder.

  draw.py RUN PICTURES

Dashboards are drawn by board.jsx with Grafana's components, which npm gets the first time (into target/pictures, 0.5 GB);
chromium photographs them, the load report and the terminal's text (CHROMIUM names another browser), pngquant shrinks that.
"""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
BUILD = HERE.parent.parent / "target/pictures"
# The files that the runs leave, with the name of the picture and what was run.
SHARES = "a run of scripts/platform on a real Kafka, {}, with config/lending-platform.toml"
PACE = "an eight-minute run on a real Kafka, {}, with tools/pictures/pace.toml"
DASHBOARDS = {name: (f"dashboard-{name}", SHARES) for name in ("service", "client", "platform", "capacity-planning")}
DASHBOARDS["pace"] = ("pace", PACE)
WIDTH = 1600

# How an appended script tells how high a page is.
MEASURE = "<script>document.title = document.documentElement.scrollHeight</script>"


def bundle():
    """Makes BUILD/board.js and board.css."""
    BUILD.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "package.json").read_text()
    if not (BUILD / "node_modules").exists() or (BUILD / "package.json").read_text() != wanted:
        npm = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--legacy-peer-deps", "--ignore-scripts"]
        shutil.copy(HERE / "package.json", BUILD)
        subprocess.run(npm, cwd=BUILD, check=True)
    shutil.copy(HERE / "board.jsx", BUILD)
    subprocess.run(["node_modules/.bin/esbuild", "board.jsx", "--bundle", "--outfile=board.js", "--define:global=window",
                    '--define:process.env.NODE_ENV="production"', "--loader:.ttf=dataurl",
                    "--log-level=error"], cwd=BUILD, check=True)


def browse(page, *options):
    browser = os.environ.get("CHROMIUM", "chromium")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000"]
    done = subprocess.run([*command, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def photograph(page, picture, width):
    """The whole page, as high as its title says once its scripts have run."""
    title = re.search(r"<title>(\d+)</title>", browse(page, "--dump-dom", f"--window-size={width},100"))
    browse(page, f"--window-size={width},{title[1]}", f"--screenshot={picture.resolve()}")
    subprocess.run(["pngquant", "--quality=70-95", "--speed=1", "--force", "--output", picture, picture], check=True)
    print(f"{picture}: {picture.stat().st_size // 1000} kB")


def board_page(answers, label):
    board = json.dumps(answers).replace("</", "<\\/")
    return f"""<!doctype html><meta charset="utf-8"><title></title><link rel="stylesheet" href="board.css">
<style>* {{ box-sizing: border-box }} body {{ margin: 0 }}</style><div id="root"></div>
<script>window.ANSWERS = {board}; window.LABEL = {json.dumps(label)}</script><script src="board.js"></script>"""


def upper_part(answers, title):
    """The same dashboard down to the panel of that title: the first screen, for the README."""
    panels = answers["board"]["panels"]
    end = next(panel["gridPos"]["y"] for panel in panels if panel["title"] == title)
    return answers | {"board": answers["board"] | {"panels": [each for each in panels if each["gridPos"]["y"] < end]}}


# The colours of a terminal, by number.
COLOURS = ("#24262d #f2495c #73bf69 #fade2a #5794f2 #b877d9 #56d2d2 #ccccdc "
           "#8e8e99 #ff7383 #96d98d #ffee52 #8ab8ff #ca95e5 #8fe8e8 #ffffff").split()
LOOKS = {"1": "font-weight: bold", "2": "opacity: .6", "4": "text-decoration: underline",
         "7": f"background: {COLOURS[7]}; color: {COLOURS[0]}", "39": f"color: {COLOURS[7]}"}
LOOKS |= {f"38;5;{number}": f"color: {colour}" for number, colour in enumerate(COLOURS)}
LOOKS |= {str(30 + number): f"color: {colour}" for number, colour in enumerate(COLOURS[:8])}


def terminal_page(screen, label):
    spans, looks = [], []
    for index, part in enumerate(re.split(r"\x1b\[([\d;]*)m", screen.rstrip())):
        if index % 2:
            # tmux writes one attribute at a time; without one, or with 0, it is a reset.
            looks = [*looks, LOOKS.get(part, "")] if part.strip("0") else []
        else:
            spans.append(f'<span style="{"; ".join(looks)}">{html.escape(part)}</span>')
    return f"""<!doctype html><meta charset="utf-8"><title></title>
<style>
  body {{ margin: 0; padding: 16px 20px; background: #111217; color: #ccccdc }}
  pre {{ font: 14px/1.3 "DejaVu Sans Mono", monospace; margin: 0 0 12px }}
  p {{ font: 12px sans-serif; color: #8e8e99; margin: 0 }}
</style>
<pre>{"".join(spans)}</pre><p>{html.escape(label)}</p>{MEASURE}"""


def report_page(report, label):
    footer = f'<p style="font: 13px sans-serif; opacity: .7">{html.escape(label)}</p>{MEASURE}'
    return re.sub(r"<title>.*?</title>", "<title></title>", report, flags=re.S).replace("</body>", footer + "</body>")


def main():
    if len(sys.argv) != 3 or "--help" in sys.argv:
        sys.exit(__doc__)
    run, pictures = map(pathlib.Path, sys.argv[1:])
    pictures.mkdir(parents=True, exist_ok=True)
    bundle()
    page = BUILD / "page.html"
    date = (run / "date").read_text().strip()
    grafana = json.loads((HERE / "package.json").read_text())["dependencies"]["@grafana/ui"]
    for name, (picture, source) in DASHBOARDS.items():
        if not (run / f"{name}.json").exists():
            continue
        label = (f"Drawn by scripts/pictures with the panel components of Grafana {grafana} from what the panels' queries answered in "
                 f"{source.format(date)}. Not a screenshot of Grafana.")
        answers = json.loads((run / f"{name}.json").read_text())
        page.write_text(board_page(answers, label))
        photograph(page, pictures / f"{picture}.png", WIDTH)
        if name == "service":
            page.write_text(board_page(upper_part(answers, "Alerts"), label))
            photograph(page, pictures / "campaign.png", WIDTH)
    source = SHARES.format(date)
    if (run / "report.html").exists():
        page.write_text(report_page((run / "report.html").read_text(), f"The page that `watermaster load --report` wrote, of {source}."))
        photograph(page, pictures / "load-report.png", 1280)
    if (run / "top.ansi").exists():
        page.write_text(terminal_page((run / "top.ansi").read_text(), f"The screen of `watermaster top` in the middle of {source}."))
        photograph(page, pictures / "top.png", 1000)


if __name__ == "__main__":
    main()
