"""Encodes a table of sentences on a Spark cluster with a registered model; docs/bulk.md.

    spark-submit tools/encode_with_spark.py --input texts.parquet --output vectors.parquet
    python tools/encode_with_spark.py --master 'local-cluster[2,1,1024]' --input ... --output ...

The output has all columns of the input and `vector`, and `exit_layer` if asked for. Rows without a sentence
are left out and counted.
"""

import argparse
import json
import sys
import time

import mlflow
from pyspark.sql import SparkSession

# Sentences of one call of the model on a worker, sorted by length and encoded in smaller batches; the served
# model refuses calls of more than 1,024.
ROWS_A_CALL = 1024


def main() -> None:
    """Reads, encodes and writes; the last line is a JSON summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="a parquet file or folder that all workers can read")
    parser.add_argument("--output", required=True, help="a folder for parquet files; must not exist")
    parser.add_argument("--column", default="sentence", help="the column of the input to encode")
    parser.add_argument("--model", default="models:/leap@champion", help="any MLflow model URI or folder")
    parser.add_argument("--strategy", default="converged", help="converged, or full for full depth")
    parser.add_argument("--exit-layers", action="store_true", help="also write each sentence's exit layer")
    parser.add_argument("--partitions", type=int, help="spread the rows over so many tasks first")
    parser.add_argument("--master", help="the cluster, if spark-submit does not name it")
    arguments = parser.parse_args()

    builder = SparkSession.builder.appName("leap").config(
        "spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_A_CALL
    )
    if arguments.master:
        builder = builder.master(arguments.master)
    spark = builder.getOrCreate()
    parameters = {"strategy": arguments.strategy, "return_exit_layers": arguments.exit_layers}
    encode = mlflow.pyfunc.spark_udf(
        spark,
        arguments.model,
        result_type="vector array<float>, exit_layer int" if arguments.exit_layers else "array<float>",
        env_manager="local",
        params=parameters,
    )

    started = time.monotonic()
    table = spark.read.parquet(arguments.input)
    if arguments.partitions:
        table = table.repartition(arguments.partitions)
    sentences = table.where(table[arguments.column].isNotNull())
    # The model's input is named by its signature, whatever the column is called here.
    encoded = sentences.withColumn("leap", encode(sentences[arguments.column].alias("sentence")))
    parts = ["leap.vector", "leap.exit_layer"] if arguments.exit_layers else ["leap"]
    result = encoded.select(*sentences.columns, *parts)
    if not arguments.exit_layers:
        result = result.withColumnRenamed("leap", "vector")
    result.write.parquet(arguments.output)
    summary = {
        "sentences": spark.read.parquet(arguments.output).count(),
        "left_out": table.count() - sentences.count(),
        "seconds": round(time.monotonic() - started, 1),
    }
    sys.stdout.write(json.dumps(summary) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
