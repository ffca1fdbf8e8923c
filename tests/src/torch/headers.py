"""Unpacks the C++ headers of a wheel without downloading the wheel: a wheel is a zip archive, and a web server that knows ranges
gives its directory and single files. torch's wheels are 500 to 900 MB, their headers 10 MB.

usage: headers.py PACKAGE==VERSION FOLDER PREFIX...
"""
import io
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile

CHUNK = 1 << 20


class Ranges(io.RawIOBase):
    """A file behind a web address, read in chunks as they are asked for."""

    def __init__(self, url):
        self.url, self.at, self.chunks = url, 0, {}
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as head:
            self.length = int(head.headers["Content-Length"])

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + (0, self.at, self.length)[whence]
        return self.at

    def chunk(self, n):
        if n not in self.chunks:
            first, last = n * CHUNK, min((n + 1) * CHUNK, self.length) - 1
            ask = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{last}"})
            with urllib.request.urlopen(ask, timeout=120) as answer:
                if answer.status != 206:
                    raise OSError(f"the server answers {answer.status} to a range: the whole wheel would come")
                self.chunks[n] = answer.read()
        return self.chunks[n]

    def readinto(self, into):
        want = min(len(into), self.length - self.at)
        done = 0
        while done < want:
            n, skip = divmod(self.at, CHUNK)
            part = self.chunk(n)[skip : skip + want - done]
            into[done : done + len(part)] = part
            done += len(part)
            self.at += len(part)
        return done


def address_of(requirement):
    """What pip would install, and from where: from its own index, mirror and proxy settings."""
    ask = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
    report = subprocess.run([*ask, requirement], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(report)["install"][0]["download_info"]["url"]


def main():
    requirement, folder, *prefixes = sys.argv[1:]
    if os.path.isdir(folder):
        return
    part = f"{folder}.part{os.getpid()}"
    with zipfile.ZipFile(io.BufferedReader(Ranges(address_of(requirement)), CHUNK)) as wheel:
        names = [n for n in wheel.namelist() if n.startswith(tuple(prefixes))]
        # In the order they lie in the archive, so that every chunk is fetched once.
        for name in sorted(names, key=lambda n: wheel.getinfo(n).header_offset):
            wheel.extract(name, part)
    if not names:
        raise SystemExit(f"{requirement}: nothing below {' '.join(prefixes)}")
    try:
        os.rename(part, folder)
    except OSError:  # another process was faster
        shutil.rmtree(part)


main()
