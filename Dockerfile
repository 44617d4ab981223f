# cifnet_pl on a CPU: docker build -t cifnet .
# docker run --rm -v "$PWD:/data" cifnet fit --data.root PHOTOS
# docker run --rm -v "$PWD:/data" -p 7860:7860 cifnet serve --host 0.0.0.0 --token_file token --model MODEL
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY cifnet_pl cifnet_pl
COPY configs configs
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=wheel /wheels /wheels
# With --build-arg INDEX=…, torch's own index of builds for CPUs, the image is several gigabytes smaller.
ARG INDEX=""
RUN pip install --no-cache-dir ${INDEX:+--extra-index-url "$INDEX"} "$(ls /wheels/*.whl)[embedded,serve]" && rm -r /wheels
# Run folders land in the mounted folder; exported networks stay beside them, so that the next container has them.
WORKDIR /data
EXPOSE 7860
ENV CIFNET_CACHE=/data/.cifnet_cache
ENTRYPOINT ["cifnet"]
CMD ["--help"]
