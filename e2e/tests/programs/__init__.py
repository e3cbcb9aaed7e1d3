"""Tests of programs and runs as users meet them: answers, the command line, refusals, sources, deadlines."""
