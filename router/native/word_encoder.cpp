// Texts cut into words as tokenizers cut them, and the token ids of words met before.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace py = pybind11;

namespace baton {
namespace {

constexpr std::size_t kMaxWords = 1 << 16;  // remembered; then they are learnt anew

enum Kind : std::uint8_t { kOther, kLetter, kDigit, kSpace, kUnknown };

// What each character is to the patterns. Python is asked once for each beyond ASCII.
class Kinds {
public:
    explicit Kinds(py::object classify) : classify_(std::move(classify)), kinds_(kMaxCharacter + 1, kUnknown) {
        for (std::uint32_t code = 0; code < 128; ++code) {
            const bool letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
            const bool space = code == ' ' || (code >= '\t' && code <= '\r');
            kinds_[code] = letter ? kLetter : code >= '0' && code <= '9' ? kDigit : space ? kSpace : kOther;
        }
    }

    Kind of(std::uint32_t character) const {
        const Kind kind = kinds_[character];
        return kind == kUnknown ? ask(character) : kind;
    }

private:
    Kind ask(std::uint32_t character) const {
        const auto text = py::reinterpret_steal<py::object>(
            PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, &character, 1));
        return kinds_[character] = static_cast<Kind>(classify_(text).cast<int>() & kSpace);
    }

    static constexpr std::uint32_t kMaxCharacter = 0x10FFFF;
    const py::object classify_;
    mutable std::vector<Kind> kinds_;
};

// Finds words one after the other. Two families of patterns, named for the tokenizers that brought them up.
template <typename Character>
class Splitter {
public:
    Splitter(const Kinds& kinds, bool cl100k, std::size_t max_digits, const Character* text, std::size_t end)
        : kinds_(kinds), cl100k_(cl100k), max_digits_(max_digits), text_(text), end_(end) {}

    // The end of the word that begins at `start`, which lies before the text's end.
    std::size_t next(std::size_t start) const {
        if (const std::size_t length = contraction(start)) return start + length;
        return cl100k_ ? next_cl100k(start) : next_gpt2(start);
    }

private:
    // 's 't 're 've 'm 'll 'd
    std::size_t contraction(std::size_t start) const {
        const std::size_t left = end_ - start;
        if (text_[start] != '\'' || left < 2) return 0;
        const Character first = lower(text_[start + 1]);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
        if (left < 3) return 0;
        const Character second = lower(text_[start + 2]);
        const bool found = (second == 'e' && (first == 'r' || first == 'v')) || (second == 'l' && first == 'l');
        return found ? 3 : 0;
    }

    Character lower(Character letter) const {
        return cl100k_ && letter >= 'A' && letter <= 'Z' ? static_cast<Character>(letter + ('a' - 'A')) : letter;
    }

    // ` ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    std::size_t next_gpt2(std::size_t start) const {
        const std::size_t first = start + (text_[start] == ' ');
        if (first < end_ && kind(first) != kSpace) return run(first, end_, kind(first));
        return spaces(start);
    }

    // `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    std::size_t next_cl100k(std::size_t start) const {
        const Kind first_kind = kind(start);
        if (first_kind == kLetter) return run(start, end_, kLetter);
        if (first_kind == kDigit) return run(start, std::min(end_, start + max_digits_), kDigit);
        if (!is_newline(start) && start + 1 < end_ && kind(start + 1) == kLetter) return run(start + 1, end_, kLetter);
        const std::size_t first = start + (text_[start] == ' ');
        if (first < end_ && kind(first) == kOther) {
            std::size_t place = run(first, end_, kOther);
            while (place < end_ && is_newline(place)) ++place;
            return place;
        }
        for (std::size_t place = run(start, end_, kSpace); place > start; --place) {
            if (is_newline(place - 1)) return place;
        }
        return spaces(start);
    }

    std::size_t run(std::size_t place, std::size_t end, Kind wanted) const {
        while (place < end && kind(place) == wanted) ++place;
        return place;
    }

    // All spaces up to a text's end; else all but the last, which goes with what follows, unless it is the only one.
    std::size_t spaces(std::size_t start) const {
        const std::size_t place = run(start, end_, kSpace);
        return place == end_ || place == start + 1 ? place : place - 1;
    }

    Kind kind(std::size_t place) const { return kinds_.of(text_[place]); }

    bool is_newline(std::size_t place) const { return text_[place] == '\n' || text_[place] == '\r'; }

    const Kinds& kinds_;
    const bool cl100k_;             // else gpt2
    const std::size_t max_digits_;  // of a word; cl100k alone
    const Character* const text_;
    const std::size_t end_;
};

void append_utf8(std::string& text, std::uint32_t character) {
    if (character < 0x80) {
        text += static_cast<char>(character);
        return;
    }
    const int num_more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
    constexpr unsigned char kLead[] = {0, 0xC0, 0xE0, 0xF0};
    text += static_cast<char>(kLead[num_more] | (character >> (6 * num_more)));
    for (int shift = 6 * (num_more - 1); shift >= 0; shift -= 6) {
        text += static_cast<char>(0x80 | ((character >> shift) & 0x3F));
    }
}

// A word and its token ids, in one cache line. A word that does not fit is not remembered.
struct alignas(64) Word {
    static constexpr std::size_t kMaxBytes = 30;
    static constexpr std::size_t kMaxIds = 6;

    std::uint64_t hash;
    std::uint32_t ids[kMaxIds];
    std::uint8_t num_ids;  // 0: there is no word here
    std::uint8_t num_bytes;
    char text[kMaxBytes];  // UTF-8

    bool is(std::uint64_t other_hash, std::string_view other) const {
        return hash == other_hash && num_bytes == other.size() && !std::memcmp(text, other.data(), other.size());
    }
};

static_assert(sizeof(Word) == 64);

// The words met so far: open addressing, at most half full. The hash has a secret in it, and no search is long, so that
// nobody makes everybody's prompts slow by words that lie in one place.
class Words {
public:
    Words() : slots_(kFirstSlots) {
        std::random_device device;
        secret_ = (static_cast<std::uint64_t>(device()) << 32) | device();
    }

    std::uint64_t hash(std::string_view text) const {
        std::uint64_t value = secret_ + text.size();
        for (std::size_t place = 0; place < text.size(); place += 8) {
            std::uint64_t part = 0;
            std::memcpy(&part, text.data() + place, std::min<std::size_t>(8, text.size() - place));
            value = (value ^ part) * 0x9E3779B97F4A7C15ull;
            value ^= value >> 29;
        }
        return value;
    }

    void prefetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]); }

    const Word* find(std::uint64_t hash, std::string_view text) const {
        for (std::size_t place = hash; place < hash + kMaxProbes; ++place) {
            const Word& word = slots_[place & (slots_.size() - 1)];
            if (!word.num_ids) return nullptr;
            if (word.is(hash, text)) return &word;
        }
        return nullptr;
    }

    // Remembers a word that is not there yet.
    void add(std::uint64_t hash, std::string_view text, const std::vector<std::uint32_t>& ids) {
        if (text.size() > Word::kMaxBytes || ids.empty() || ids.size() > Word::kMaxIds) return;
        if (num_words_ >= kMaxWords) {
            slots_.assign(kFirstSlots, Word{});
            num_words_ = 0;
        }
        if (2 * (num_words_ + 1) > slots_.size()) grow();
        Word word{};
        word.hash = hash;
        std::copy(ids.begin(), ids.end(), word.ids);
        word.num_ids = static_cast<std::uint8_t>(ids.size());
        word.num_bytes = static_cast<std::uint8_t>(text.size());
        std::memcpy(word.text, text.data(), text.size());
        num_words_ += put(word);
    }

private:
    static constexpr std::size_t kFirstSlots = 1 << 12;  // a power of two
    static constexpr std::size_t kMaxProbes = 64;

    bool put(const Word& word) {
        for (std::size_t place = word.hash; place < word.hash + kMaxProbes; ++place) {
            Word& slot = slots_[place & (slots_.size() - 1)];
            if (slot.num_ids) continue;
            slot = word;
            return true;
        }
        return false;
    }

    void grow() {
        std::vector<Word> old(2 * slots_.size());
        old.swap(slots_);
        num_words_ = 0;
        for (const Word& word : old) {
            if (word.num_ids) num_words_ += put(word);
        }
    }

    std::vector<Word> slots_;
    std::size_t num_words_ = 0;
    std::uint64_t secret_;
};

// Python's numbers for token ids, each made once.
class Numbers {
public:
    PyObject* operator[](std::uint32_t id) {
        if (id >= known_.size()) known_.resize(id + 1);
        py::object& number = known_[id];
        if (!number) number = py::int_(id);
        return number.ptr();
    }

private:
    std::vector<py::object> known_;
};

class WordEncoder {
public:
    WordEncoder(bool cl100k, std::size_t max_digits, py::object classify, py::object learn)
        : cl100k_(cl100k), max_digits_(max_digits), kinds_(std::move(classify)), learn_(std::move(learn)) {}

    // The ids of about `max_words` words from `start` on, and where the next word begins.
    py::tuple encode(const py::str& text, std::size_t start, std::size_t max_words) {
        const void* data = PyUnicode_DATA(text.ptr());
        const auto end = static_cast<std::size_t>(PyUnicode_GET_LENGTH(text.ptr()));
        std::vector<std::uint32_t> ids;
        ids.reserve(std::min(max_words * 2, end - std::min(start, end)));
        switch (PyUnicode_KIND(text.ptr())) {
            case PyUnicode_1BYTE_KIND:
                start = encode_words(static_cast<const Py_UCS1*>(data), start, end, max_words, ids);
                break;
            case PyUnicode_2BYTE_KIND:
                start = encode_words(static_cast<const Py_UCS2*>(data), start, end, max_words, ids);
                break;
            default:
                start = encode_words(static_cast<const Py_UCS4*>(data), start, end, max_words, ids);
        }
        return py::make_tuple(list_of(ids), start);
    }

private:
    static constexpr std::size_t kBatch = 16;  // words whose slots are on their way from memory at a time

    struct Found {
        std::string text;
        std::uint64_t hash = 0;
    };

    template <typename Character>
    std::size_t encode_words(const Character* text, std::size_t start, std::size_t end, std::size_t max_words,
                             std::vector<std::uint32_t>& ids) {
        const Splitter<Character> splitter(kinds_, cl100k_, max_digits_, text, end);
        std::array<Found, kBatch> batch;
        for (std::size_t num_words = 0; start < end && num_words < max_words; num_words += kBatch) {
            std::size_t size = 0;
            for (; size < kBatch && start < end; ++size) {
                const std::size_t stop = splitter.next(start);
                Found& found = batch[size];
                found.text.clear();
                for (; start < stop; ++start) append_utf8(found.text, text[start]);
                found.hash = words_.hash(found.text);
                words_.prefetch(found.hash);
            }
            for (std::size_t place = 0; place < size; ++place) append(batch[place], ids);
        }
        return start;
    }

    void append(const Found& found, std::vector<std::uint32_t>& ids) {
        if (const Word* word = words_.find(found.hash, found.text)) {
            ids.insert(ids.end(), word->ids, word->ids + word->num_ids);
            return;
        }
        // The call may let another thread in here, so nothing found before it is used after it.
        const auto learnt = learn_(py::str(found.text)).cast<std::vector<std::uint32_t>>();
        ids.insert(ids.end(), learnt.begin(), learnt.end());
        if (!words_.find(found.hash, found.text)) words_.add(found.hash, found.text, learnt);
    }

    py::object list_of(const std::vector<std::uint32_t>& ids) {
        auto list = py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(ids.size())));
        if (!list) throw py::error_already_set();
        for (std::size_t place = 0; place < ids.size(); ++place) {
            PyObject* number = numbers_[ids[place]];
            Py_INCREF(number);
            PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(place), number);
        }
        return list;
    }

    const bool cl100k_;
    const std::size_t max_digits_;
    const Kinds kinds_;
    const py::object learn_;
    Words words_;
    Numbers numbers_;
};

}  // namespace
}  // namespace baton

PYBIND11_MODULE(word_encoder, module) {
    using baton::WordEncoder;
    py::class_<WordEncoder>(module, "CompiledWords")
        .def(py::init<bool, std::size_t, py::object, py::object>(), py::arg("cl100k"), py::arg("max_digits"),
             py::arg("classify"), py::arg("learn"))
        .def("encode", &WordEncoder::encode, py::arg("text"), py::arg("start"), py::arg("max_words"));
}
