"""Programs that try to get a reward without the answer, or to leave the sandbox. The task: f(n) is n squared plus 1.

OUTSIDE is a folder of the tests' own, PARENT the tests' process. Each entry: what it does, and how its reason begins.
"""

SPINNING = {
    "loop when loaded": ("while True: pass\ndef f(n): return n * n + 1", "wrong: time limit"),
    "loop in a call": ("def f(n):\n    while True: pass", "wrong: time limit"),
    "long sum": ("def f(n): return sum(range(10**13))", "wrong: time limit"),
    "regex": ("import re\ndef f(n): return re.match('(x+x+)+y', 'x' * 64)", "wrong: time limit"),
    "swallows everything": (
        "def f(n):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        "wrong: time limit",
    ),
    "ignores signals": (
        "import signal\nfor s in range(1, 64):\n    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
        "signal.setitimer = signal.alarm = lambda *a: None\ndef f(n):\n    while True: pass",
        "wrong: time limit",
    ),
    "raises its own limits": (
        "import resource\nfor r in (resource.RLIMIT_CPU, resource.RLIMIT_AS):\n"
        "    try: resource.setrlimit(r, (resource.RLIM_INFINITY,) * 2)\n    except Exception: pass\n"
        "def f(n):\n    while True: pass",
        "wrong: time limit",
    ),
    "spins in threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(4): threading.Thread(target=spin).start()\ndef f(n):\n    spin()",
        "wrong: time limit",
    ),
    "itertools": ("import itertools\ndef f(n): return list(itertools.product(range(12), repeat=9))", "wrong: "),
    "shared references": ("def f(n):\n    x = [n]\n    for _ in range(60): x = [x, x]\n    return x", "wrong: "),
}
SLEEPING = {
    "sleeps": ("import time\ndef f(n): time.sleep(10**6)", "wrong: time limit"),
    "waits for itself": (
        "import threading\nl = threading.Lock()\nl.acquire()\ndef f(n): l.acquire()",
        "wrong: time limit",
    ),
    "closes its output": ("import os\nos.closerange(0, 64)\ndef f(n): return n * n + 1", "wrong: "),
    "closes its output and sleeps": ("import os, time\nos.closerange(0, 64)\ntime.sleep(10**6)", "wrong: "),
    "stops itself": ("import os, signal\ndef f(n):\n    signal.raise_signal(signal.SIGSTOP)\n    return 0", "wrong: "),
}
GREEDY = {
    "20 GiB": ("def f(n): return len(bytearray(20 << 30))", "wrong: memory limit"),
    "creeping": ("def f(n):\n    x = []\n    while True: x.append(bytearray(1 << 22))", "wrong: "),
    "creeping and swallowing": (
        "def f(n):\n    x = []\n    while True:\n        try: x.append(bytearray(1 << 20))\n"
        "        except MemoryError: pass",
        "wrong: time limit",
    ),
    "200 MB of prints": ("for _ in range(200): print('x' * (1 << 20))\ndef f(n): return n", "wrong: base input 0"),
    "200 MB on every descriptor": (
        "import os\ndef f(n):\n    for fd in range(64):\n        try:\n"
        "            for _ in range(200): os.write(fd, b'\\xff' * (1 << 20))\n        except OSError: pass\n"
        "    return n",
        "wrong: ",
    ),
    "a large file": (
        "def f(n):\n    with open('x', 'wb') as x:\n        for _ in range(1000): x.write(bytes(1 << 20))",
        "wrong: ",
    ),
    "many files": (
        "def f(n):\n    i = 0\n    while True:\n        i += 1\n        open(f'{i}', 'wb').write(bytes(1 << 18))",
        "wrong: ",
    ),
    "nested folders": (
        "import os\ndef f(n):\n    while True:\n        os.mkdir('x')\n        os.chdir('x')",
        "wrong: PermissionError",
    ),
    "many threads": (
        "import threading, time\nthreading.stack_size(1 << 15)\ndef f(n):\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(100,)).start()",
        "wrong: ",
    ),
    "file in memory": (
        "import os\ndef f(n):\n    fd = os.memfd_create('x')\n    for _ in range(1000): os.write(fd, bytes(1 << 20))",
        "wrong: ",
    ),
    "long output": ("def f(n): return 'x' * (30 << 20)", "wrong: base input 0"),
    "long integer": ("def f(n): return 1 << (1 << 27)", "wrong: base input 0"),
    "deep output": ("def f(n):\n    x = n\n    for _ in range(10**5): x = [x]\n    return x", "wrong: "),
    "output that holds itself": ("def f(n):\n    x = []\n    x.append(x)\n    return x", "wrong: base input 0"),
    "colliding set": ("def f(n): return {i * (2**61 - 1) for i in range(900)}", "wrong: base input 0"),
}
LEAVING = {
    "sys.exit when loaded": ("import sys\nsys.exit(0)\ndef f(n): return 0", "wrong: SystemExit"),
    "os._exit when loaded": ("import os\nos._exit(0)\ndef f(n): return 0", "wrong: its process ended"),
    "sys.exit in a call": ("import sys\ndef f(n): sys.exit(0)", "wrong: SystemExit at base input 0"),
    "os._exit in a call": ("import os\ndef f(n): os._exit(0)", "wrong: its process ended"),
    "KeyboardInterrupt": ("def f(n): raise KeyboardInterrupt", "wrong: KeyboardInterrupt at base input 0"),
    "an exception of its own": ("class All(BaseException): pass\ndef f(n): raise All", "wrong: All at base input 0"),
    "hostile exception": (
        "class M(type):\n    __name__ = property(lambda s: 1 / 0)\nclass E(BaseException, metaclass=M): pass\n"
        "def f(n): raise E",
        "wrong: ",
    ),
    "segmentation fault": ("import ctypes\ndef f(n): ctypes.string_at(0)", "wrong: its process ended SIGSEGV"),
    "abort": ("import os\ndef f(n): os.abort()", "wrong: its process ended"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return eval('(' * 90 + '0' + ')' * 90) + g(n)\n"
        "def g(n): return sorted([n], key=g)",
        "wrong: ",
    ),
    "kills itself": ("import os\ndef f(n): os.kill(os.getpid(), 9)", "wrong: PermissionError at base input 0"),
    "reads input": ("def f(n): return int(input())", "wrong: EOFError at base input 0"),
    "reads standard input when loaded": (
        "import sys\nx = sys.stdin.read()\ndef f(n): return len(x)",
        "wrong: base input 0",
    ),
}
LYING = {
    "equal to all": (
        "class A:\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __sub__ = lambda s, o: s\n"
        "    __abs__ = lambda s: 0.0\n    __hash__ = None\ndef f(n): return A()",
        "wrong: base input 0",
    ),
    "an int equal to all": (
        "class A(int):\n    __eq__ = lambda s, o: True\ndef f(n): return A(7)",
        "wrong: base input 0",
    ),
    "a list equal to all": (
        "class A(list):\n    __eq__ = lambda s, o: True\ndef f(n): return A([7])",
        "wrong: base input 0",
    ),
    "a text equal to all": (
        "class A(str):\n    __eq__ = lambda s, o: True\ndef f(n): return A('7')",
        "wrong: base input 0",
    ),
    "claims a class": (
        "class A:\n    __class__ = property(lambda s: int)\ndef f(n): return A()",
        "wrong: base input 0",
    ),
    "reduces to code": (
        "import os\nclass A:\n    def __reduce__(self): return os.system, ('touch OUTSIDE/reduced',)\n"
        "def f(n): return A()",
        "wrong: base input 0",
    ),
    "iterates for ever": (
        "class A(list):\n    def __iter__(self):\n        while True: yield 1\n    __len__ = lambda s: 1 << 62\n"
        "def f(n): return A()",
        "wrong: base input 0",
    ),
    "not a number": ("def f(n): return float('nan')", "wrong: base input 0"),
    "infinite": ("def f(n): return float('inf')", "wrong: base input 0"),
    "half a character": ("def f(n): return chr(0xD800) + 'x'", "wrong: base input 0"),
    "a type": ("def f(n): return StopIteration", "wrong: base input 0"),
    "a marker": ("def f(n): return (StopIteration, 'iterable', [n * n + 1])", "wrong: base input 0"),
    "code": ("def f(n): return f.__code__", "wrong: base input 0"),
    "frames": (
        "import sys\ndef f(n):\n    frame = sys._getframe()\n    while frame:\n"
        "        for x in list(frame.f_locals.values()):\n"
        "            if isinstance(x, (list, tuple)) and 10 in x: return 10\n        frame = frame.f_back\n"
        "    return 0",
        "wrong: base input 0",
    ),
    "objects": (
        "import gc\ndef f(n):\n    for x in gc.get_objects():\n"
        "        if type(x) is list and len(x) == 5 and type(x[0]) is int and x[0] > n * n: return x[0]\n"
        "    return 0",
        "wrong: base input 0",
    ),
    "forged end": (
        "import os, marshal\ndef f(n):\n    for fd in range(64):\n"
        "        try: os.write(fd, b'E' + (0).to_bytes(4, 'little'))\n"
        "        except OSError: pass\n    os._exit(0)",
        "wrong: its process ended",
    ),
    "an end that is expensive to read": (
        "import os, marshal\nout = marshal.dumps({n * (2**61 - 1) for n in range(10**4)}, 2)\ndef f(n):\n"
        "    for fd in range(3, 64):\n        try:\n"
        "            for kind in b'V' * 5 + b'E': os.write(fd, bytes([kind]) + len(out).to_bytes(4, 'little') + out)\n"
        "        except OSError: pass\n    os._exit(0)",
        "wrong: ",
    ),
    "forged outputs": (
        "import os, marshal\nout = marshal.dumps(True, 2)\nfor fd in range(64):\n    try:\n"
        "        for _ in range(99): os.write(fd, b'V' + len(out).to_bytes(4, 'little') + out)\n"
        "    except OSError: pass\nos._exit(0)",
        "wrong: ",
    ),
    "patches the runner": (
        "import builtins, marshal, os, sys\nmarshal.dumps = lambda *a: b'T'\nos._exit = lambda n: None\n"
        "builtins.type = builtins.isinstance = lambda *a: True\nsys.modules['encode'].encode = lambda x: (b'V', b'T')\n"
        "def f(n): return 0",
        "wrong: ",
    ),
    "the prompt's own example": ("def f(n):\n    assert n == 2\n    return 5", "wrong: AssertionError at base input 0"),
    "the base inputs by heart": ("def f(n): return {3: 10, 4: 17}[n]", "wrong: KeyError at plus input 0"),
}
ESCAPING = {
    "fork": ("import os\ndef f(n):\n    while True: os.fork()", "wrong: PermissionError at base input 0"),
    "fork that swallows": (
        "import os\ndef f(n):\n    for _ in range(9):\n        try: os.fork()\n        except OSError: pass\n"
        "    return n",
        "wrong: base input 0",
    ),
    "subprocess": (
        "import subprocess\ndef f(n):\n    subprocess.Popen(['sleep', '300'])\n    return n * n + 1",
        "wrong: ",
    ),
    "os.system": ("import os\ndef f(n): return os.system('touch OUTSIDE/system')", "wrong: "),
    "exec": ("import os\ndef f(n): os.execv('/bin/true', ['true'])", "wrong: PermissionError"),
    "detached child": (
        "import os, time\ndef f(n):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0: time.sleep(300)\n"
        "        os._exit(0)\n    return n * n + 1",
        "wrong: PermissionError",
    ),
    "raw clone": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    return [libc.syscall(56, 17, 0, 0, 0, 0), libc.syscall(435, 0, 0), libc.syscall(57), libc.syscall(58)]",
        "wrong: base input 0",
    ),
    "kills its parent": ("import os\ndef f(n):\n    os.kill(PARENT, 9)\n    return n * n + 1", "wrong: "),
    "kills everything": (
        "import os\ndef f(n):\n"
        "    for kill, who in ((os.kill, -1), (os.killpg, 0), (os.kill, os.getppid()), (os.kill, 0)):\n"
        "        try: kill(who, 9)\n        except OSError: pass\n    return 0",
        "wrong: base input 0",
    ),
    "has itself killed": (
        "import os, resource\ndef f(n):\n    try: resource.setrlimit(resource.RLIMIT_CPU, (0, 0))\n"
        "    except ValueError: pass\n"
        "    os._exit(137)",
        "wrong: its process ended",
    ),
    "has itself killed by a timer": (
        "import ctypes, time\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    event = (ctypes.c_int * 16)(0, 0, 9, 0)\n    timer = ctypes.c_int()\n"
        "    if libc.syscall(222, 1, event, ctypes.byref(timer)): raise PermissionError\n"
        "    libc.syscall(223, timer, 0, (ctypes.c_long * 4)(0, 0, 0, 1000), None)\n    time.sleep(1)",
        "wrong: ",
    ),
    "a call of another architecture": (
        "import ctypes, mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3')\n"
        "start = ctypes.addressof(ctypes.c_char.from_buffer(code))\n"
        "def f(n): return ctypes.CFUNCTYPE(ctypes.c_int)(start)()",
        "wrong: its process ended",
    ),
    "signals through a file": (
        "import fcntl, os, signal\ndef f(n):\n    r, w = os.pipe()\n    fcntl.fcntl(r, fcntl.F_SETOWN, PARENT)\n"
        "    return 0",
        "wrong: PermissionError",
    ),
    "limits its parent": (
        "import resource\ndef f(n): resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1))",
        "wrong: ",
    ),
    "opens a socket": ("import socket\ndef f(n): return socket.socket()", "wrong: PermissionError at base input 0"),
    "fetches": (
        "import urllib.request\ndef f(n): return urllib.request.urlopen('http://127.0.0.1:1').read()",
        "wrong: URLError",
    ),
    "writes outside": ("def f(n):\n    open('OUTSIDE/written', 'w').close()\n    return n * n + 1", "wrong: "),
    "io.open outside": ("import io\ndef f(n):\n    io.open('OUTSIDE/written', 'w')\n    return n * n + 1", "wrong: "),
    "deletes outside": ("import os\ndef f(n):\n    os.remove('OUTSIDE/precious')\n    return n * n + 1", "wrong: "),
    "changes outside": ("import os\ndef f(n):\n    os.chmod('OUTSIDE/precious', 0)\n    return n * n + 1", "wrong: "),
    "truncates outside": (
        "import os\ndef f(n):\n    os.truncate('OUTSIDE/precious', 0)\n    return n * n + 1",
        "wrong: ",
    ),
    "renames outside": (
        "import os\ndef f(n):\n    os.rename('OUTSIDE/precious', 'OUTSIDE/x')\n    return n * n + 1",
        "wrong: ",
    ),
    "links": (
        "import os\ndef f(n):\n    os.symlink('OUTSIDE', 'l')\n    open('l/written', 'w')\n    return n * n + 1",
        "wrong: ",
    ),
    "reads the data": ("def f(n): return len(open('OUTSIDE/tasks.jsonl').read()) and n * n + 1", "wrong: "),
    "reads the cache": ("import os\ndef f(n): return len(os.listdir('OUTSIDE/cache')) and n * n + 1", "wrong: "),
    "reads its parent's memory": ("def f(n): return open('/proc/PARENT/mem', 'rb').read(1) and n * n + 1", "wrong: "),
    "traces its parent": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    if libc.ptrace(16, PARENT, 0, 0): raise PermissionError\n    return n * n + 1",
        "wrong: PermissionError",
    ),
    "a namespace of its own": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    if libc.unshare(0x10000000): raise PermissionError\n    return n * n + 1",
        "wrong: PermissionError",
    ),
    "outlives its parent": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    if libc.prctl(1, 0, 0, 0, 0): raise PermissionError\n    return n * n + 1",
        "wrong: PermissionError",
    ),
    "reads its own descriptors": (
        "import os\ndef f(n):\n    for fd in range(3, 64):\n"
        "        for way in (os.readlink, lambda x: open(x, 'rb')):\n"
        "            for folder in ('/proc/self/fd', '/dev/fd', f'/proc/{os.getpid()}/fd', '/proc/thread-self/fd'):\n"
        "                try: way(f'{folder}/{fd}')\n                except OSError: continue\n"
        "                return n * n + 1\n    return os.listdir('/proc/self/fd')",
        "wrong: ",
    ),
    "moves to another folder": (
        "import os\ndef f(n):\n    os.chdir('/')\n    return n * n + 1",
        "wrong: PermissionError",
    ),
    "a program in memory": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n    fd = libc.memfd_create(b'x', 0)\n"
        "    if fd < 0 or libc.fexecve(fd, None, None): raise OSError(ctypes.get_errno(), '')\n    return n * n + 1",
        "wrong: PermissionError",
    ),
    "a ring of input and output": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    return n * n + 1 if libc.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0 else None",
        "wrong: base input 0",
    ),
    "reads another process's memory": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nx = ctypes.create_string_buffer(8)\n"
        "part = (ctypes.c_ulong * 2)(ctypes.addressof(x), 8)\ndef f(n):\n    for who in (PARENT, os.getpid(), 1):\n"
        "        if libc.process_vm_readv(who, part, 1, part, 1, 0) >= 0: return n * n + 1\n",
        "wrong: base input 0",
    ),
    "takes another process's files": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    pid = libc.syscall(434, PARENT, 0)\n"
        "    return n * n + 1 if pid >= 0 or libc.syscall(438, pid, 0, 0) >= 0 else None",
        "wrong: base input 0",
    ),
    "joins other namespaces": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n    for fd in range(16):\n"
        "        if libc.setns(fd, 0) == 0: return n * n + 1\n    raise OSError(ctypes.get_errno(), '')",
        "wrong: PermissionError",
    ),
    "a filter of its own": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    for call in ((22, 2, 0, 0, 0), (22, 1, 0, 0, 0), (24, 0, 0, 0, 0), (36, 1, 0, 0, 0), (4, 1, 0, 0, 0)):\n"
        "        if libc.prctl(*call) == 0 or ctypes.get_errno() != 1: return n * n + 1\n",
        "wrong: base input 0",
    ),
    "shared memory that stays": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef f(n):\n"
        "    if libc.shmget(4711, 4096, 0o1666) < 0: raise PermissionError\n    return n * n + 1",
        "wrong: PermissionError",
    ),
}
RIGHT = {
    "plain": "def f(n): return n * n + 1",
    "prints": "print('loading')\ndef f(n):\n    print(n, flush=True)\n    return n * n + 1",
    "writes to standard error": "import sys\ndef f(n):\n    sys.stderr.write('x' * 100000)\n    return n * n + 1",
    "leaves a thread": (
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(300)).start()\ndef f(n): return n * n + 1"
    ),
    "computes in a thread": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(4)\n"
        "def f(n): return pool.submit(lambda: n * n + 1).result()"
    ),
    "asyncio": (
        "import asyncio\nasync def g(n):\n    await asyncio.sleep(0)\n    return n * n + 1\n"
        "def f(n): return asyncio.run(g(n))"
    ),
    "a named tuple's field": (
        "from collections import namedtuple\nP = namedtuple('P', 'a')\ndef f(n): return P(n * n + 1).a"
    ),
    "bool and float": "def f(n): return float(n * n + 1)",
    "an enumeration": "import enum\ndef f(n): return enum.IntEnum('E', {'x': n * n + 1}).x",
    "a fraction": "from fractions import Fraction\ndef f(n): return Fraction(n * n + 1)",
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: 'int'\ndef f(n): return P(n * n + 1).a"
    ),
    "numpy": "import numpy as np\ndef f(n): return int(np.array([n]) @ np.array([n])) + 1",
    "numpy's integer": "import numpy as np\ndef f(n): return np.int64(n) ** 2 + 1",
    "a scratch file": (
        "import tempfile\ndef f(n):\n    with open('notes', 'w+') as file:\n        file.write(str(n * n + 1))\n"
        "        file.seek(0)\n        return int(file.read())"
    ),
    "the way to a file": (
        "import os, pathlib\ndef f(n):\n    open('notes', 'w').write('x')\n"
        "    assert os.path.realpath('notes').endswith('notes') and pathlib.Path('notes').resolve().exists()\n"
        "    os.replace('notes', 'kept')\n    return n * n + os.path.getsize('kept')"
    ),
    "a lock, an event and a queue": (
        "import queue, threading\ndef f(n):\n    q, done = queue.Queue(), threading.Event()\n"
        "    threading.Thread(target=lambda: (q.put(n * n + 1), done.set())).start()\n"
        "    assert done.wait(5)\n    return q.get(timeout=5)"
    ),
    "a time limit of its own": (
        "import signal\ndef ring(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, ring)\ndef f(n):\n"
        "    try:\n        signal.setitimer(signal.ITIMER_REAL, 0.01)\n        while True: pass\n"
        "    except TimeoutError: return n * n + 1"
    ),
    "much of the standard library": (
        "import bisect, calendar, collections, csv, datetime, decimal, functools, hashlib, heapq, html, io, json\n"
        "import locale, logging, pprint, random, sqlite3, statistics, string, struct, tempfile, textwrap, time\n"
        "import typing, unittest, uuid, xml.etree.ElementTree, zlib, zoneinfo\n"
        "def f(n):\n    time.sleep(0.001)\n    random.seed(n)\n    hashlib.sha256(bytes(n)).hexdigest()\n"
        "    datetime.datetime.now().strftime('%c')\n    uuid.uuid4()\n    logging.warning('x')\n"
        "    assert sqlite3.connect(':memory:').execute('select 1').fetchall() == [(1,)]\n"
        "    with tempfile.TemporaryFile() as x: x.write(b'x')\n"
        "    return json.loads(json.dumps(n * n + 1))"
    ),
    "runs when imported only": "def f(n): return n * n + 1\nif __name__ == '__main__': raise SystemExit",
}
HOSTILE = {**SPINNING, **SLEEPING, **GREEDY, **LEAVING, **LYING, **ESCAPING}
