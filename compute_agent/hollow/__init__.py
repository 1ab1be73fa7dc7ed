"""Hollow agents: many hosts in one process, to try a fleet's size before it is there.

Each host is the real agent (compute_agent.agent) with other machinery under it: threads
and connections are shared by all hosts of the process. docs/hollow.md.
"""
