"""The site's pages that live elsewhere in the repository, and links that lead to them.

README.md becomes the first page; the changelog, the tour for contributors, the model cards and the configurations
become pages too. Links are written for readers of the repository; here each is turned to the page it means.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).resolve().parent.parent.parent
PAGES = {  # file of the repository: page of the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
    "CITATION.cff": "citation.md",
    "configs": "configs.md",
    "docs/records": "records.md",
    **{
        f"src/unmask/shipped/{card.parent.name}/README.md": f"models/{card.parent.name}.md"
        for card in sorted((HERE / "src/unmask/shipped").glob("*/README.md"))
    },
}
HOMES = {page: source for source, page in PAGES.items() if Path(source).suffix == ".md"}
LINK = re.compile(r"(\]\()([^)#\s]+)")
FILE = re.compile(r"\[(?:[\w-]+/)*([\w-]+)\.md\](?=\()")  # a link whose text is a file: a page has no ending


def on_files(files: Files, config: Any) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=content(source)))
    return files


def content(source: str) -> str:
    path = HERE / source
    if source == "configs":
        parts = [f"## {one.stem}\n\n```toml\n{one.read_text(encoding='utf-8')}```\n" for one in configurations()]
        return (
            "# Configurations\n\nComplete runs: `unmask train --config FILE --data DATA --out RUN`.\n\n"
            + "\n".join(parts)
        )
    if source == "docs/records":
        names = [f"- [{one.stem}](records/{one.name})" for one in sorted(path.glob("*.json"))]
        return "# Records\n\nOne file per measurement: the figures and all that explains them.\n\n" + "\n".join(names)
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".md" else f"# {path.stem.title()}\n\n```text\n{text}```\n"


def configurations() -> list[Path]:
    return sorted((HERE / "configs").rglob("*.toml"))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that are right in the repository, made right in the site."""
    site = page.file.src_uri
    home = HOMES.get(site, f"docs/{site}")

    def turned(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        if meant.startswith("configs/"):
            meant = "configs"
        there = PAGES.get(meant, meant.removeprefix("docs/") if meant.startswith("docs/") else None)
        if there is None:
            return match[0]  # leads out of the site: mkdocs says so, and --strict refuses it
        return match[1] + posixpath.relpath(there, posixpath.dirname(site) or ".")

    return LINK.sub(turned, FILE.sub(r"[\1]", markdown))
