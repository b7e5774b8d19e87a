"""Encodes a table of sentences on a Spark cluster with a registered model; docs/bulk.md.

    spark-submit tools/encode_with_spark.py --input texts.parquet --output vectors.parquet
    python tools/encode_with_spark.py --master 'local-cluster[2,1,1024]' --input ... --output ...

The output has all columns of the input and `vector`, and `exit_layer` if asked for. Rows without a sentence
are left out and counted.
"""

import argparse
import json
import os
import sys
import time

import mlflow
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, functions

# The served model refuses large requests, which protects a server that answers many; here each call is a batch of
# our own making. Of one text, and of all texts of a call, in characters.
LIMITS = {"LEAP_MAX_CHARACTERS": "10000000", "LEAP_MAX_REQUEST_CHARACTERS": "10000000000"}
# Sentences of one call of the model on a worker, sorted by length and encoded in smaller batches; the served
# model refuses calls of more than 1,024.
ROWS_A_CALL = 1024
# The model's result as one column, before it is taken apart.
MADE = "leap_result"


def main() -> None:
    """Reads, encodes and writes; the last line is a JSON summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="a parquet file or folder that all workers can read")
    parser.add_argument("--output", required=True, help="a folder for parquet files; must not exist")
    parser.add_argument("--column", default="sentence", help="the column of the input to encode")
    parser.add_argument("--model", default="models:/leap-docstrings@champion", help="a URI of MLflow or a folder")
    parser.add_argument("--strategy", help="full for full depth; the model's own rules if left out")
    parser.add_argument(
        "--input-type", choices=("query", "document"), help="takes the model's prompt of that name"
    )
    parser.add_argument("--exit-layers", action="store_true", help="also write each sentence's exit layer")
    parser.add_argument("--partitions", type=int, help="spread the rows over so many tasks first")
    parser.add_argument("--master", help="the cluster, if spark-submit does not name it")
    arguments = parser.parse_args()

    for name, limit in LIMITS.items():
        os.environ.setdefault(name, limit)  # the workers of this machine inherit it, those of others get it below
    builder = SparkSession.builder.appName("leap").config(
        "spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_A_CALL
    )
    for name in LIMITS:
        builder = builder.config(f"spark.executorEnv.{name}", os.environ[name])
    if arguments.master:
        builder = builder.master(arguments.master)
    spark = builder.getOrCreate()
    table = spark.read.parquet(arguments.input)
    made = ["vector", "exit_layer"] if arguments.exit_layers else ["vector"]
    refusal = refused(table.dtypes, arguments.column, made)
    if refusal:
        raise SystemExit(f"error: {arguments.input} {refusal}")
    encode = mlflow.pyfunc.spark_udf(
        spark,
        arguments.model,
        result_type="vector array<float>, exit_layer int" if arguments.exit_layers else "array<float>",
        env_manager="local",
        params={
            "strategy": arguments.strategy,
            "input_type": arguments.input_type,
            "return_exit_layers": arguments.exit_layers,
        },
    )

    started = time.monotonic()
    if arguments.partitions:
        table = table.repartition(arguments.partitions)
    sentences = table.where(functions.col(quoted(arguments.column)).isNotNull())
    # The model's input is named by its signature, whatever the column is called here.
    vectors = encode(functions.col(quoted(arguments.column)).alias("sentence"))
    columns = [functions.col(quoted(name)) for name in table.columns]
    encoded = sentences.select(*columns, vectors.alias(MADE))
    parts = [functions.col(f"{MADE}.{name}") for name in made]
    result = (
        encoded.select(*columns, *parts) if arguments.exit_layers else encoded.withColumnRenamed(MADE, "vector")
    )
    result.write.parquet(arguments.output)
    summary = {
        "sentences": spark.read.parquet(arguments.output).count(),
        "left_out": table.count() - sentences.count(),
        "seconds": round(time.monotonic() - started, 1),
    }
    sys.stdout.write(json.dumps(summary) + "\n")
    spark.stop()


def refused(types: list[tuple[str, str]], column: str, made: list[str]) -> str | None:
    """Return why a table cannot be encoded, null if it can; Spark does not tell columns apart by case.

    Args:
        types: the table's columns with their types in Spark's words.
        column: that of the sentences.
        made: the columns that the output will have in addition.
    """
    columns = [name for name, _ in types]
    lower = [name.lower() for name in columns]
    if lower.count(column.lower()) != 1:
        count = "no" if column.lower() not in lower else "more than one"
        return f"has {count} column {column}: its columns are {', '.join(columns)}; see --column"
    kind = types[lower.index(column.lower())][1]
    if kind != "string":
        return f"has the column {column} of type {kind}: expected string"
    taken = [name for name in (*made, MADE) if name in lower]
    if taken:
        return f"has a column {taken[0]}, which the output would have twice: rename or drop it first"
    return None


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it whole, dots included."""
    return "`" + name.replace("`", "``") + "`"


if __name__ == "__main__":
    try:
        main()
    except AnalysisException as error:  # an input that is not there, an output that is
        sys.exit(f"error: {str(error).splitlines()[0]}")
