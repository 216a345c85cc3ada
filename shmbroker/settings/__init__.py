"""Settings: each one once, from the table to what a process goes by.

   setting         one row: type, default, allowed values, text
   table           all rows: topic settings, broker settings
   layers          where a value is from: topic, broker, all brokers, file and flags, default
   broker_config   what file and flags say for this family
   files, checks   reading files; refusing what clients give
   java_properties the format of such files as server.properties
   without_effect  what Kafka has, and is kept and shown though nothing here goes by it
   left_out        what Kafka has and means nothing here

* A *topic setting* (`segment.bytes`) has its value from, in this order: the topic's own override,
  the broker's dynamic value, the dynamic value of all brokers, the broker's file and flags, the
  default. Below the topic it goes by its *synonyms*: broker settings such as `log.segment.bytes`.
* A *broker setting* is static (read once, at start) or dynamic (IncrementalAlterConfigs may change
  it while it runs).
* Refusals are ValueErrors with Kafka's words, as clients get to see them; what is wrong in a file
  or a flag becomes a ConfigFault of one sentence.
"""
