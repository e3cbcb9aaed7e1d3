"""Tests of the Helm chart: installs, upgrades, rollbacks and second releases."""
