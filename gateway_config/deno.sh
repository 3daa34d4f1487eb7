#!/bin/sh
# deno.sh PROGRAM CONNECTION_FILE: start the kernel.
# It reads its folder's configuration then, and can't if that is broken, nor be told not to. So it starts once more
# while nobody may look into the folder, which is as if there was none.

program=$1 connection=$2
PATH="${program%/*}:$PATH"
export PATH

found= odd=
for name in deno.json deno.jsonc package.json; do
    [ -e "$name" ] || [ -L "$name" ] || continue
    found=$name
    [ -f "$name" ] || odd=$name # what is no file may never end
done
if [ -z "$found" ] || [ ! -r /proc/net/tcp ]; then
    exec "$program" jupyter --kernel --conn "$connection"
fi

port=$(sed -n 's/.*"shell_port": *\([0-9]*\).*/\1/p' "$connection")
listening=$(printf ': 0100007F:%04X 00000000:0000 0A' "$port")

start() {
    "$program" jupyter --kernel --conn "$connection" &
    kernel=$!
}

# It listens when it has read the configuration. False: it ended before, or takes too long.
comes_up() {
    left=400
    until grep -q "$listening" /proc/net/tcp; do
        read -r _ _ state _ 2>/dev/null <"/proc/$kernel/stat" || return 1
        left=$((left - 1))
        if [ "$state" = Z ] || [ "$left" = 0 ]; then return 1; fi
        sleep 0.02
    done
}

if [ -z "$odd" ]; then
    start
    if comes_up; then
        wait "$kernel"
        exit $?
    fi
    kill -KILL "$kernel" 2>/dev/null
    wait "$kernel"
fi
echo "The kernel is started without $found, or what it names: it can not be read." >&2
folder=$(pwd) mode=$(stat -c %a .)
chmod 0 "$folder"
start
comes_up
chmod "$mode" "$folder"
wait "$kernel"
