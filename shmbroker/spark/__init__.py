"""PySpark data source `shmbroker`: reads topics straight from the log files of a local broker.

    spark = SparkSession.builder.config(map=session_conf()).getOrCreate()
    spark.read.format("shmbroker")            # or readStream
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "topic").load()

Spark finds it by itself once the package is installed (`pyspark_shmbroker`). Nothing here imports
pyspark, pyarrow or numpy before it is used.
"""

from shmbroker.spark.session import java_home, session_conf

__all__ = ["java_home", "session_conf"]
