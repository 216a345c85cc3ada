"""The I/O worker's side of tiered storage: what is copied, dropped, fetched again, and from where.

   this worker                                     tier process (`tier.service`)
   a partition is led here, or held            →   lists what the store has of it
   a closed segment is on the disk, and
     all of it is below the high watermark     →   copies it; nothing is lost while it doesn't
   a copied one is past local retention: unlinked here
   the log start moves over copies             →   deletes them
   a read before the local start               →   fetches a piece of a segment into a file
  … by a read_committed reader                →   reads transaction indexes of segments
  a follower begins where the copies end      →   reads what was known there

Rules of these files:
* Nobody waits: a read that needs a piece is in the purgatory meanwhile (`broker.read`).
* Leaders copy and delete; followers look now and then, and drop what the leader has copied.
* A local segment goes only when the store's list, as this worker knows it, covers all of it.
* What the store refuses is tried again, after 1 s, 2 s … 60 s; reads are told KAFKA_STORAGE_ERROR
  meanwhile. A segment that is damaged here ends the copying of its partition until the next start.

   module                what it does
   tiering               all of it, as the rest of the broker sees it
   remotes               what is known of each partition's copies; what all others work on
   lists                 asks for what the store has, and brings the log together with it
   uploads               copies closed segments, deletes copies that nobody can read any more
   retention             ends copies by retention, and unlinks what local retention doesn't keep
   reads                 answers reads before the local start
   pieces                the cache of pieces that those are answered from
   transaction_indexes   the aborted transactions of such reads
   time_lookups          finds offsets by time in the store
   states                what was known where copies end: epochs, producers
"""
