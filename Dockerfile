# syntax=docker/dockerfile:1
# One image for agent, picker and console, for amd64 and arm64:
#   docker buildx build --platform linux/amd64,linux/arm64 -t ghcr.io/zerohop/zerohop:0.1.0 .
# Every dependency has wheels for both; the modules that every request passes through are compiled here (mypyc, about two
# minutes). The last stage has neither a compiler nor pip.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 HATCH_BUILD_HOOKS_ENABLE=1
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv --without-pip /opt/zerohop
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY console console
COPY engine engine
COPY picker picker
COPY process process
COPY snapshot snapshot
RUN pip --python /opt/zerohop/bin/python install --only-binary :all: --no-binary zerohop '.[kubernetes]' \
    && /opt/zerohop/bin/python -m compileall -q /opt/zerohop/lib \
    && /opt/zerohop/bin/zerohop --version | grep compiled

FROM python:${PYTHON}-slim
# The interpreter's own pip would be a build tool in the last stage.
RUN pip uninstall --yes --quiet --root-user-action=ignore pip \
    && groupadd --system --gid 10000 zerohop \
    && useradd --system --uid 10001 --gid 10000 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin zerohop
COPY --from=build /opt/zerohop /opt/zerohop
ENV PATH=/opt/zerohop/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
USER 10001:10000
LABEL org.opencontainers.image.title=zerohop \
      org.opencontainers.image.description="An endpoint picker for LLM inference" \
      org.opencontainers.image.licenses=Apache-2.0
ENTRYPOINT ["zerohop"]
CMD ["--help"]
