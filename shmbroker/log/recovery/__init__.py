"""Opening a log: find its end, check what must be checked, rebuild what is derived.

   how it ended                   what is trusted        what is read
   a worker under a living        the stored position    the last batch
   supervisor (trusted)
   closed cleanly (clean)         the file sizes         the last batch
   neither                        below the recovery     every batch behind it
                                  point, the sizes

A scanned batch must be whole and right by CRC, continue the offsets, and not fall back to an older
leader epoch: batches left over from before a truncation fail one of these. (Where compaction is or
has been, offsets need only grow.)

   what is wrong                   a torn write              damage
   where                           above the recovery        below it, or where no torn write can
                                   point                     be the cause (`mending`)
   other replicas, or none         cut                       above the recovery point, cut; below it
                                                             stays, and readers are refused
   no other replica                cut                       a hole: what is whole behind is served

Cut: at the first batch that is wrong; later segments go to the quarantine, the file is cut there
and synced before anybody reads. What a power cut has torn must be cut, though whole batches follow:
who sees those must have seen all before them. A hole is noted as compaction's gaps are
(`cleaned_offset`), so that later starts and readers jump over it.

A clean stop left a recovery point that is the log's end: where it isn't, something has changed
since, and the end is scanned. No checkpoint makes a log longer or shorter than its batches: what
none of them bears out is named and not used.

   module          what it does
   opening         all of it, in order
   listing         which segments and snapshots are there
   epochs          the leader epochs, by their file and by the batches
   ends            whether the log ends where its last writer says, or its last file
   scan            else: segment by segment, from the recovery point on
   segment_scan    one segment, batch by batch: checked, indexed, mended or cut
   scan_start      where that begins, and which index entries count
   places          where a segment may begin and must end; where offsets may be missing
   damage          what is named, cut and put aside
   holes           what is served all the same where no other replica is
   snapshots       which producer snapshot is the log's
   replay          what batches say of producers and transactions
   producers       the producer state, from a snapshot and the batches behind it
"""
