"""Tests of engine pools: scaling, updates, models, and what ends or restarts under them."""
