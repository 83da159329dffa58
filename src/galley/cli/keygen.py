"""``galley keygen``: a new API key, and its entry in the key file."""

import hashlib
import secrets

import click


@click.command()
@click.argument("name", metavar="NAME", help="of the tenant whose key it is")
def keygen(name: str) -> None:
    """Make an API key for a tenant, and print it with the tenant's lines of the key file.

    galley keygen NAME >> keys.yaml adds the tenant to the file, or makes it; the key itself is printed to
    stderr. The file holds the key's hash only. A tenant may have several keys: write their hashes as a
    list, [HASH, HASH], hand the new key out, and delete the old hash later.
    """
    from galley.gateway.key_file import check_name

    check_name(name)
    key = f"sk-{secrets.token_urlsafe(32)}"
    click.echo(f"the key, shown this once: {key}\n", err=True)
    click.echo(f"  - name: {name}\n    key_sha256: {hashlib.sha256(key.encode()).hexdigest()!r}")
