# Serves a model folder over HTTP in the form of OpenAI's /v1/embeddings; docs/serving.md.
#
#   docker build -t leap .
#   docker run -p 8000:8000 -v "$PWD/models/leap-1:/model:ro" leap
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml README.md ./
COPY src src
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir ".[serve]"
RUN useradd --create-home leap
USER leap
ENV HF_HUB_OFFLINE=1
EXPOSE 8000
CMD ["leap", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
