"""Anthropic's Messages API: its requests made chats, and an inferlet's events made its blocks.

What belongs here knows the form of this API. Nothing here ever knows how a chat is checked, launched or followed.
"""
