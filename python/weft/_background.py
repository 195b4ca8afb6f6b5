"""Threads for what waits for the cache, so that an engine's own threads never do."""

import queue
import threading


class Background:
    """Up to so many threads. They are daemons: an engine that ends does not wait for them."""

    def __init__(self, threads):
        self.left, self.most, self.tasks, self.idle, self.open = 0, threads, queue.SimpleQueue(), threading.Condition(), 0

    def add(self, task, *args):
        with self.idle:
            self.left += 1
            if self.open < min(self.left, self.most):
                self.open += 1
                threading.Thread(target=self._run, daemon=True).start()
        self.tasks.put((task, args))

    def _run(self):
        while True:
            task, args = self.tasks.get()
            if task is None:
                return
            try:
                task(*args)
            finally:
                with self.idle:
                    self.left -= 1
                    self.idle.notify_all()

    def flush(self, seconds):
        """Whether everything is done, after waiting that long at most."""
        with self.idle:
            return self.idle.wait_for(lambda: not self.left, seconds)

    def close(self):
        with self.idle:
            n, self.open, self.most = self.open, 0, 0
        for _ in range(n):
            self.tasks.put((None, ()))
