"""MkDocs hook: rewrite links that leave ``docs/`` to the file's URL in the repository.

Pages link to files such as ``../SECURITY.md`` by path, which works in a clone; the site has no such files.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"\]\((?P<path>\.\./[^)#\s]*)(?P<rest>[^)]*)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the page with links to files outside ``docs/`` replaced by URLs of the repository.

    Raises:
        FileNotFoundError: a link leads nowhere.
    """
    folder = (Path(config.docs_dir) / page.file.src_uri).parent
    docs = Path(config.docs_dir).resolve()

    def replaced(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link["path"]))
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(
                f"{page.file.src_uri} links to {link['path']}, which does not exist"
            )
        kind = "tree" if target.is_dir() else "blob"
        return (
            f"]({config.repo_url}/{kind}/main/{target.relative_to(ROOT).as_posix()}{link['rest']})"
        )

    return LINK.sub(replaced, markdown)
