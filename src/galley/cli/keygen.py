"""``galley keygen``: a new API key, and its entry in the key file."""

import hashlib
import secrets

import click


@click.command()
@click.argument("name", metavar="NAME", help="the tenant's name")
def keygen(name: str) -> None:
    """Create an API key for a tenant, and print the tenant's lines of the key file.

    galley keygen NAME >> keys.yaml adds the tenant to the file, and creates it if needed; the key itself is
    printed to stderr. The file contains only the key's hash. To rotate a key, write both hashes as a list,
    [HASH, HASH], hand out the new key, and delete the old hash later.
    """
    from galley.gateway.key_file import check_name

    check_name(name)
    key = f"sk-{secrets.token_urlsafe(32)}"
    click.echo(f"the key, shown only once: {key}\n", err=True)
    click.echo(f"  - name: {name}\n    key_sha256: {hashlib.sha256(key.encode()).hexdigest()!r}")
