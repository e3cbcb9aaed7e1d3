"""What calls take and give: handles, models, distributions, and the checks of arguments.

Belongs here: values without a host behind them, and the texts of refused arguments. Never here: the channel, so that
making or checking a value costs no command.
"""
