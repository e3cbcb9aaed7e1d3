"""Which of several controls leads: leases in a file or in Redis, and the epochs that come with them.

Belongs here: acquiring, keeping and giving back a lease, and what a control does that stands by. Never here: what a
leader does.
"""
