"""The states of a group of the classic protocol, and how it comes from one to the next.

    EMPTY ──join──► PREPARING ──all joined, or time is up──► COMPLETING ──stored──► STABLE
      ▲               │ ▲  ▲                                     │                     │
      └──nobody left──┘ │  └──────── a member joins or goes ─────┘                     │
                        └───────────── a member joins, goes, or brings something new ──┘
    any ──deleted or unloaded──► DEAD

The names are what clients read (DescribeGroups, ListGroups). A log knows two of them: with members
a group is STABLE when it has been loaded, without any EMPTY.

Source: Kafka's ClassicGroupState.
"""

from __future__ import annotations

EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"
DEAD = "Dead"
