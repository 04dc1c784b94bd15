import multiprocessing
import os

from asked import serve


def work(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


if __name__ == "__main__":
    pool = multiprocessing.get_context("fork").Pool(2)
    workers = {process.pid for process in pool._pool}

    def answer() -> str:
        found = pool.map(work, range(5), chunksize=1)
        return f"{[square for square, _ in found]} {({pid for _, pid in found}) <= workers}"

    serve(answer)
