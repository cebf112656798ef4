// Products of floats, pairs and bytes on memory of exactly the size that they may touch, so that sanitizers detect
// accesses beyond it. With the argument "beyond" more rows are declared than there are, which must be detected.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "products/low_rank.hpp"
#include "products/panels.hpp"
#include "products/work.hpp"

using namespace baton;

namespace {

using Halves16 = std::unique_ptr<std::uint16_t[]>;

float widened(std::uint16_t half) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

// Owns `count` numbers of few digits between -1 and 1.
Halves16 numbers(std::size_t count, std::mt19937& random) {
    Halves16 made(new std::uint16_t[count]);
    for (std::size_t i = 0; i < count; ++i) {
        const float number = static_cast<float>(static_cast<int>(random() % 33) - 16) / 16;
        std::uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        made[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    return made;
}

// A weight [num_outputs, num_inputs] in panels.
Halves16 packed(const std::uint16_t* weight, std::size_t num_outputs, std::size_t num_inputs) {
    const std::size_t num_panels = divided_up(num_outputs, kColumns);
    Halves16 made(new std::uint16_t[num_panels * num_inputs * kColumns]);
    std::size_t at = 0;
    for (std::size_t panel = 0; panel < num_panels; ++panel) {
        for (std::size_t input = 0; input < num_inputs; input += 2) {
            for (std::size_t column = panel * kColumns; column < (panel + 1) * kColumns; ++column) {
                for (std::size_t k = 0; k < 2; ++k) {
                    made[at++] = column < num_outputs ? weight[column * num_inputs + input + k] : 0;
                }
            }
        }
    }
    return made;
}

// Converts rows on two threads.
void convert(RowsWork& rows) {
    std::thread other([&] { rows.work(); });
    rows.work();
    other.join();
}

// Runs one task on two threads. `more_rows`: that there are not.
void run(const ProductFunctions& functions, bool is_gated, Task task, std::size_t more_rows = 0) {
    task.num_rows += more_rows;
    const std::size_t num_steps = is_gated ? num_gated_steps(task.weight) : num_plain_steps(task.weight);
    ProductWork product(is_gated ? functions.gated : functions.plain, num_steps, {task}, 2);
    std::thread other([&] { product.work(); });
    product.work();
    other.join();
}

// Compares a product of rows and a weight in bytes with sums in double precision.
bool agrees_in_bytes(const ProductFunctions& functions, std::size_t num_rows, std::size_t num_outputs,
                     std::size_t num_inputs, std::mt19937& random) {
    const std::size_t num_panels = divided_up(num_outputs, kColumns);
    const Halves16 rows = numbers(num_rows * num_inputs, random), result(new std::uint16_t[num_rows * num_outputs]);
    const std::unique_ptr<std::int8_t[]> weight(new std::int8_t[num_panels * kColumns * num_inputs]);
    const std::unique_ptr<float[]> scales(new float[num_panels * kColumns]);
    const std::unique_ptr<std::int32_t[]> offsets(new std::int32_t[num_panels * kColumns]);
    std::size_t at = 0;
    std::vector<std::vector<int>> plain(num_panels * kColumns, std::vector<int>(num_inputs));
    for (std::size_t panel = 0; panel < num_panels; ++panel) {
        for (std::size_t input = 0; input < num_inputs; input += 4) {
            for (std::size_t column = panel * kColumns; column < (panel + 1) * kColumns; ++column) {
                for (std::size_t k = 0; k < 4; ++k) {
                    weight[at] = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
                    plain[column][input + k] = weight[at++];
                }
            }
        }
    }
    for (std::size_t column = 0; column < num_panels * kColumns; ++column) {
        scales[column] = 0.01f * static_cast<float>(column + 1);
        offsets[column] = 0;
        for (const int each : plain[column]) offsets[column] += 128 * each;
    }
    const Weight panels{reinterpret_cast<const Unit*>(weight.get()), num_outputs, num_inputs, 4, scales.get(), offsets.get()};
    RowsWork inputs(functions, rows.get(), num_rows, panels);
    convert(inputs);
    run(functions, false, {panels, nullptr, inputs.row(0), inputs.scale(0), result.get(), num_rows});
    bool holds = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        const double scale = *inputs.scale(row);
        for (std::size_t column = 0; column < num_outputs; ++column) {
            double expected = 0;
            for (std::size_t k = 0; k < num_inputs; ++k) {
                const double number = widened(rows[row * num_inputs + k]);
                expected += (scale == 0 ? 0 : std::nearbyint(number / scale)) * plain[column][k];
            }
            expected *= scale * scales[column];
            const double two_roundings = 2 * 127 * scale * scales[column];  // of numbers halfway between two bytes
            const double error = std::fabs(widened(result[row * num_outputs + column]) - expected);
            holds &= error <= 0.005 * std::fabs(expected) + two_roundings;
        }
    }
    return holds;
}

// Compares a product of rows and a weight in floats with sums in double precision.
bool agrees_in_floats(const ProductFunctions& functions, std::size_t num_rows, std::size_t num_outputs,
                      std::size_t num_inputs, std::mt19937& random) {
    const std::size_t num_panels = divided_up(num_outputs, kColumns);
    const Halves16 rows = numbers(num_rows * num_inputs, random), weight = numbers(num_outputs * num_inputs, random);
    const std::unique_ptr<float[]> panels(new float[num_panels * num_inputs * kColumns]);
    const std::unique_ptr<float[]> result(new float[num_rows * num_outputs]);
    for (std::size_t panel = 0, at = 0; panel < num_panels; ++panel) {
        for (std::size_t input = 0; input < num_inputs; ++input) {
            for (std::size_t column = panel * kColumns; column < (panel + 1) * kColumns; ++column) {
                panels[at++] = column < num_outputs ? widened(weight[column * num_inputs + input]) : 0;
            }
        }
    }
    const Weight floats{reinterpret_cast<const Unit*>(panels.get()), num_outputs, num_inputs, 1, nullptr, nullptr};
    RowsWork inputs(functions, rows.get(), num_rows, floats);
    convert(inputs);
    run(functions, false, {floats, nullptr, inputs.row(0), nullptr, result.get(), num_rows});
    bool holds = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        for (std::size_t column = 0; column < num_outputs; ++column) {
            double expected = 0;
            for (std::size_t k = 0; k < num_inputs; ++k) {
                expected += static_cast<double>(widened(rows[row * num_inputs + k])) * widened(weight[column * num_inputs + k]);
            }
            holds &= std::fabs(result[row * num_outputs + column] - expected) <= 1e-4;
        }
    }
    return holds;
}

// Compares a product of rows and a weight in bfloat16 with sums in double precision.
bool agrees(const ProductFunctions& functions, std::size_t num_rows, std::size_t num_outputs, std::size_t num_inputs,
            bool is_gated, std::mt19937& random, std::size_t more_rows = 0) {
    const std::size_t width = is_gated ? num_outputs / 2 : num_outputs;
    const Halves16 rows = numbers(num_rows * num_inputs, random), weight = numbers(num_outputs * num_inputs, random);
    const Halves16 bias = numbers(num_outputs, random), panels = packed(weight.get(), num_outputs, num_inputs);
    const Halves16 result(new std::uint16_t[num_rows * width]);
    const Weight pairs{reinterpret_cast<const Unit*>(panels.get()), num_outputs, num_inputs, 2, nullptr, nullptr};
    RowsWork inputs(functions, rows.get(), num_rows, pairs);
    convert(inputs);
    const Task task{pairs, num_rows % 2 && !is_gated ? bias.get() : nullptr, inputs.row(0), nullptr, result.get(), num_rows};
    run(functions, is_gated, task, more_rows);
    const auto product = [&](std::size_t row, std::size_t output) {
        double total = task.bias ? widened(bias[output]) : 0;
        for (std::size_t k = 0; k < num_inputs; ++k) {
            total += static_cast<double>(widened(rows[row * num_inputs + k])) * widened(weight[output * num_inputs + k]);
        }
        return total;
    };
    bool holds = true;
    for (std::size_t row = 0; row < num_rows; ++row) {
        for (std::size_t column = 0; column < width; ++column) {
            double expected = product(row, column);
            if (is_gated) expected = expected / (1 + std::exp(-expected)) * product(row, width + column);
            holds &= std::fabs(widened(result[row * width + column]) - expected) <= 0.02 + 0.01 * std::fabs(expected);
        }
    }
    return holds;
}

// Compares an adapter's products of low rank with sums in double precision. They change all rows but the first one, and all
// columns but two.
bool agrees_in_low_rank(const ProductFunctions& functions, std::size_t num_rows, std::size_t num_columns,
                        std::size_t num_inputs, std::mt19937& random) {
    const std::size_t rank = 2 * (random() % 20 + 1), stride = num_columns + 2;
    const Halves16 rows = numbers((num_rows + 1) * num_inputs, random), a = numbers(rank * num_inputs, random);
    const Halves16 b = numbers(num_columns * rank, random), result = numbers((num_rows + 1) * stride, random);
    const Halves16 panels_of_a = packed(a.get(), rank, num_inputs), panels_of_b = packed(b.get(), num_columns, rank);
    const Halves16 before(new std::uint16_t[(num_rows + 1) * stride]);
    std::memcpy(before.get(), result.get(), (num_rows + 1) * stride * sizeof(std::uint16_t));
    const std::vector<LowRankPart> parts{
        {{reinterpret_cast<const Unit*>(panels_of_a.get()), rank, num_inputs, 2, nullptr, nullptr},
         {{{reinterpret_cast<const Unit*>(panels_of_b.get()), num_columns, rank, 2, nullptr, nullptr}, 1}}}};
    LowRankWork work(functions, {{&parts, 1, num_rows}}, rows.get(), result.get(), stride);
    std::thread other([&] { work.work(); });
    work.work();
    other.join();
    bool holds = true;
    for (std::size_t row = 0; row <= num_rows; ++row) {
        for (std::size_t column = 0; column < stride; ++column) {
            const std::size_t at = row * stride + column;
            if (row == 0 || column == 0 || column > num_columns) {
                holds &= result[at] == before[at];
                continue;
            }
            double expected = widened(before[at]), size = 1;
            for (std::size_t k = 0; k < rank; ++k) {
                double inner = 0;
                for (std::size_t i = 0; i < num_inputs; ++i) {
                    inner += static_cast<double>(widened(rows[row * num_inputs + i])) * widened(a[k * num_inputs + i]);
                }
                expected += inner * widened(b[(column - 1) * rank + k]);
                size += std::fabs(inner);
            }
            holds &= std::fabs(widened(result[at]) - expected) <= 0.01 * size;
        }
    }
    return holds;
}

// Compares many shapes.
bool agrees_in_all(const ProductFunctions& functions, std::mt19937& random) {
    for (std::size_t num_rows = 1; num_rows < 150; num_rows += 1 + num_rows / 3) {
        for (std::size_t width = 1; width < 70; width += 9) {
            const std::size_t num_inputs = 2 * (random() % 40 + 1);
            if (!agrees(functions, num_rows, width, num_inputs, false, random) ||
                !agrees(functions, num_rows, 2 * kColumns * (width % 3 + 1), num_inputs, true, random) ||
                !agrees_in_bytes(functions, num_rows, width, 2 * num_inputs, random) ||
                !agrees_in_low_rank(functions, num_rows, width, num_inputs, random) ||
                !agrees_in_floats(functions, num_rows, width, num_inputs - 1, random)) {
                std::printf("%s: wrong at %zu, %zu, %zu\n", functions.name, num_rows, width, num_inputs);
                return false;
            }
        }
    }
    return agrees(functions, 130, 20, 8194, false, random);
}

}  // namespace

int main(int argc, char**) {
    std::mt19937 random(7);
    for (const ProductFunctions& functions : product_functions()) {
        if (!agrees_in_all(functions, random)) return 1;
        if (argc > 1) agrees(functions, 8, 32, 32, false, random, 1);
        std::printf("%s: all shapes\n", functions.name);
    }
    if (product_functions().empty()) std::printf("this processor has no products\n");
}
