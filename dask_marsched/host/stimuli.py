"""Defines how the stimulus ID of a "free-keys" message begins whose running tasks are interrupted.

Tasks freed by a dropped future or a closed client run to their end: they may write.
"""

#: Dask's own for cancelled tasks.
CANCEL = "cancel-key"
#: Every running task is interrupted, whatever it does.
INTERRUPT = f"{CANCEL}-interrupt"
#: Another run of the task has ended.
SECOND_RUN = "marsched-second-run"
