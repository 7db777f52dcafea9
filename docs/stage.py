"""Put docs/ and experiments/pages/ side by side under build/pages/, where the generator of the site reads them: ``make docs``.

Links between the two trees are written as paths in the repository. Here they become paths in the site.
"""

import re
import shutil
from pathlib import Path
from posixpath import normpath, relpath

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "pages"
PLACES = {"docs": "", "experiments/pages": "reproductions"}
LINK = re.compile(r"(\]\()([^()\s#:]+)((?:#[^()\s]*)?\))")


def place_of(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    for source, target in PLACES.items():
        if path.startswith(f"{source}/"):
            return normpath(f"{target}/{path.removeprefix(f'{source}/')}" if target else path.removeprefix(f"{source}/"))
    return path


def staged(text: str, path: str) -> str:
    """Return a page of the repository with links as the site has them."""

    def link(match: re.Match[str]) -> str:
        target = place_of(normpath(f"{Path(path).parent.as_posix()}/{match[2]}"))
        return f"{match[1]}{relpath(target, Path(place_of(path)).parent.as_posix())}{match[3]}"

    return LINK.sub(link, text)


if __name__ == "__main__":
    shutil.rmtree(SITE, ignore_errors=True)
    for source in PLACES:
        for file in sorted((ROOT / source).rglob("*")):
            if file.suffix in {".md", ".svg", ".png", ".json"}:
                path = file.relative_to(ROOT).as_posix()
                target = SITE / place_of(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                if file.suffix == ".md":
                    target.write_text(staged(file.read_text(encoding="utf-8"), path), encoding="utf-8")
                else:
                    shutil.copyfile(file, target)
