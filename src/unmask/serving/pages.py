"""The routes of the page at /, and of the reference at /docs."""

from pathlib import Path

from fastapi import FastAPI, Response

from unmask.serving.refusal import wrong

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_page(app: FastAPI) -> None:
    """The page at /, and the reference at /docs: files of this package, read once."""
    files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in KINDS}

    def page(name: str) -> Response:
        if name not in files:
            raise wrong("there is nothing at this address.", status=404)
        kind = KINDS[Path(name).suffix]
        return Response(files[name], media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return page("docs.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return page(name)
