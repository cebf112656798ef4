// BLAKE2b without a key, as RFC 7693 defines it, for whole messages in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton {

inline std::uint64_t load_little_endian(const unsigned char* bytes) {
    std::uint64_t word;
    std::memcpy(&word, bytes, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

inline void store_little_endian(std::uint32_t word, unsigned char* bytes) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    std::memcpy(bytes, &word, sizeof(word));
}

class Blake2b {
public:
    // Writes the first `digest_bytes` (1 to 64) of the message's digest of that size.
    static void digest(const unsigned char* message, std::size_t num_bytes, unsigned char* out,
                       std::size_t digest_bytes) {
        std::uint64_t state[8];
        std::memcpy(state, kStart, sizeof(state));
        state[0] ^= 0x01010000 ^ digest_bytes;  // fan-out 1, depth 1, no key
        std::uint64_t num_done = 0;
        while (num_bytes - num_done > kBlockBytes) {
            num_done += kBlockBytes;
            compress(state, message + num_done - kBlockBytes, num_done, false);
        }
        unsigned char last[kBlockBytes] = {};
        std::memcpy(last, message + num_done, num_bytes - num_done);
        compress(state, last, num_bytes, true);
        for (std::size_t i = 0; i < digest_bytes; ++i) {
            out[i] = static_cast<unsigned char>(state[i / 8] >> (8 * (i % 8)));
        }
    }

private:
    static constexpr std::size_t kBlockBytes = 128;

    static constexpr std::uint64_t kStart[8] = {
        0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
        0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
    };

    static std::uint64_t rotate(std::uint64_t word, int bits) { return word >> bits | word << (64 - bits); }

    static void mix(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d, std::uint64_t x,
                    std::uint64_t y) {
        a += b + x;
        d = rotate(d ^ a, 32);
        c += d;
        b = rotate(b ^ c, 24);
        a += b + y;
        d = rotate(d ^ a, 16);
        c += d;
        b = rotate(b ^ c, 63);
    }

    // One round: its order of the message words is known when it is compiled, so that they stay in registers.
    template <int... kWord>
    static void round(std::uint64_t (&v)[16], const std::uint64_t (&m)[16]) {
        constexpr int order[16] = {kWord...};
        mix(v[0], v[4], v[8], v[12], m[order[0]], m[order[1]]);
        mix(v[1], v[5], v[9], v[13], m[order[2]], m[order[3]]);
        mix(v[2], v[6], v[10], v[14], m[order[4]], m[order[5]]);
        mix(v[3], v[7], v[11], v[15], m[order[6]], m[order[7]]);
        mix(v[0], v[5], v[10], v[15], m[order[8]], m[order[9]]);
        mix(v[1], v[6], v[11], v[12], m[order[10]], m[order[11]]);
        mix(v[2], v[7], v[8], v[13], m[order[12]], m[order[13]]);
        mix(v[3], v[4], v[9], v[14], m[order[14]], m[order[15]]);
    }

    static void compress(std::uint64_t (&state)[8], const unsigned char* block, std::uint64_t num_bytes, bool is_last) {
        std::uint64_t m[16], v[16];
        for (int i = 0; i < 16; ++i) m[i] = load_little_endian(block + 8 * i);
        std::memcpy(v, state, sizeof(state));
        std::memcpy(v + 8, kStart, sizeof(kStart));
        v[12] ^= num_bytes;
        if (is_last) v[14] = ~v[14];
        round<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(v, m);
        round<14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3>(v, m);
        round<11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4>(v, m);
        round<7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8>(v, m);
        round<9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13>(v, m);
        round<2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9>(v, m);
        round<12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11>(v, m);
        round<13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10>(v, m);
        round<6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5>(v, m);
        round<10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0>(v, m);
        round<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(v, m);
        round<14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3>(v, m);
        for (int i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[i + 8];
    }
};

}  // namespace baton
