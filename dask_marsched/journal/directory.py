"""Makes the directory of a journal for its owner alone, or refuses it, as pickles run when read."""

import os
import stat
from pathlib import Path

from dask_marsched.journal.store import SETTING, JournalError


def prepare_directory(directory: Path) -> None:
    """Make the directory; raise a JournalError if it is not, or may not be, the user's alone."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except (FileExistsError, NotADirectoryError):
        raise JournalError(f"{SETTING}: {directory} is not a directory; name one") from None
    except OSError as error:
        raise JournalError(
            f"{SETTING}: {directory} cannot be made ({error.strerror}); name a directory that can"
        ) from error
    check_private(directory, found)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise JournalError(
            f"{SETTING}: {directory} is not writable; `chmod 700` it, or name another"
        )


def check_private(path: Path, found: os.stat_result) -> None:
    """Raise a JournalError for what is not the user's alone."""
    if found.st_uid != os.geteuid():
        raise JournalError(
            f"{SETTING}: {path} belongs to user {found.st_uid}, this is user {os.geteuid()}; a "
            "journal holds pickles. Name a directory of yours, or one that does not exist yet"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise JournalError(
            f"{SETTING}: {path} is open to group or others (mode {mode:o}); a journal holds "
            f"pickles. `chmod go= {path}`, or name a directory that does not exist yet"
        )
