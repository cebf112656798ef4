"""The operations of the Redis store as Lua scripts, each of which Redis runs as one step.

baton:{NAMESPACE}:response:TENANT:ID    a record: the id of the response that it continues, a line break, the content
baton:{NAMESPACE}:responses             sorted set of TENANT:ID:SIZE by last use (µs)
baton:{NAMESPACE}:responses:TENANT      the same for one tenant
baton:{NAMESPACE}:response-bytes        hash: bytes by TENANT, and `total`

Scripts also use keys that they are not given, of other tenants' records. All have the same hash tag, so in a cluster
they are at one node.
"""

COMMON = """
local base, tenant, id, ttl_ms = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local index, sums = base .. 's', base .. '-bytes'
local function record_of(of, response) return base .. ':' .. of .. ':' .. response end
local function index_of(of) return index .. ':' .. of end
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- The order of use is kept when the clock goes back, for example on another node after a failover: with the smaller
-- time, the latest records would be the first ones to make room.
local last_us = tonumber(redis.pcall('ZRANGE', index, -1, -1, 'WITHSCORES')[2])
if last_us and last_us >= now_us and last_us < now_us + ttl_ms * 1000 then now_us = last_us + 1 end
local function member_of(of, response, num_bytes)
    return string.format('%s:%s:%.0f', of, response, num_bytes + __OVERHEAD__)
end
local function forget(member)
    local of, response, size = string.match(member, '^(%x+):([%w_-]+):(%d+)$')
    redis.call('ZREM', index, member)
    if not of then return end
    redis.call('DEL', record_of(of, response))
    redis.call('ZREM', index_of(of), member)
    for _, name in ipairs({of, 'total'}) do
        if redis.call('HINCRBY', sums, name, -size) <= 0 then redis.call('HDEL', sums, name) end
    end
end
local function touch(of, response, num_bytes)
    local member = member_of(of, response, num_bytes)
    for _, key in ipairs({index, index_of(of)}) do
        redis.call('ZADD', key, string.format('%.0f', now_us), member)
    end
    now_us = now_us + 1  -- members of equal time would be ordered by their ids
end
local function renew_indexes()
    for _, key in ipairs({index, index_of(tenant), sums}) do redis.call('PEXPIRE', key, ttl_ms) end
end
"""

# ARGV: tenant, id, ttl in ms, record, size of its content, bytes of the store, bytes of a tenant.
PUT = """
local record, size = ARGV[4], ARGV[5] + __OVERHEAD__
for key, kind in pairs({[index] = 'zset', [index_of(tenant)] = 'zset', [sums] = 'hash'}) do
    local found = redis.call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
end
local lapsed_us = string.format('%.0f', now_us - ttl_ms * 1000)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', lapsed_us, 'LIMIT', 0, 1000)) do forget(member) end
local function make_room(name, set, max_bytes)
    while tonumber(redis.call('HGET', sums, name) or 0) + size > max_bytes do
        local oldest = redis.call('ZRANGE', set, 0, 0)[1]
        if not oldest then
            redis.call('HDEL', sums, name)
            return
        end
        forget(oldest)
        redis.call('ZREM', set, oldest)
    end
end
make_room(tenant, index_of(tenant), tonumber(ARGV[7]))
make_room('total', index, tonumber(ARGV[6]))
redis.call('SET', record_of(tenant, id), record, 'PX', ttl_ms)
touch(tenant, id, ARGV[5])
for _, name in ipairs({tenant, 'total'}) do redis.call('HINCRBY', sums, name, size) end
renew_indexes()
return 1
"""

# ARGV: tenant, id, ttl in ms, maximum turns, maximum bytes. Returns a status and the records from the last one.
CHAIN = """
local found, num_bytes, ids = {}, 0, {}
while id ~= '' do
    local record = redis.call('GET', record_of(tenant, id))
    if not record then return {'missing', id} end
    local head = string.find(record, '\\n', 1, true) or #record
    num_bytes = num_bytes + #record - head + __OVERHEAD__
    if #found >= tonumber(ARGV[4]) or num_bytes > tonumber(ARGV[5]) then return {'too long'} end
    found[#found + 1] = record
    ids[#ids + 1] = {id, #record - head}
    id = string.match(string.sub(record, 1, head), '^[%w_-]*')
end
for place = #ids, 1, -1 do
    redis.call('PEXPIRE', record_of(tenant, ids[place][1]), ttl_ms)
    touch(tenant, ids[place][1], ids[place][2])
end
renew_indexes()
return {'found', unpack(found)}
"""

# ARGV: tenant, id, ttl in ms. Returns the number of deleted records.
DELETE = """
local record = redis.call('GET', record_of(tenant, id))
if not record then return 0 end
local head = string.find(record, '\\n', 1, true) or #record
forget(member_of(tenant, id, #record - head))
return 1
"""


def script(body: str, overhead: int) -> str:
    """Return a whole script; `overhead`: bytes that a record takes in addition to its content."""
    return (COMMON + body).replace("__OVERHEAD__", str(overhead))
