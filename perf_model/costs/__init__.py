"""Cost rules, one per opcode; a file of this folder is a family of ops and registers itself when
first needed.
"""
