// Earlier tokens that a token attends to.
#pragma once

#include <cstddef>
#include <limits>

namespace baton {

// The last `width` tokens, itself included, or those of its own chunk of `width` tokens. By default the whole context.
struct Span {
    std::size_t width = std::numeric_limits<std::size_t>::max();
    bool is_chunked = false;

    // Position of the first token that the token at `position` attends to.
    std::size_t first(std::size_t position) const {
        if (is_chunked) return position / width * width;
        return position < width ? 0 : position - width + 1;
    }

    bool operator==(const Span& other) const { return width == other.width && is_chunked == other.is_chunked; }
};

}  // namespace baton
