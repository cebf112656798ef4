// Weights in panels, and the work to multiply rows with them.
//
// A weight is stored in panels of 16 outputs: for each unit of inputs (one float, two bfloat16 or four bytes) the values
// of the 16 are adjacent. Outputs after the last one are zero. Sums run in the order of the inputs, so that a row's result
// depends neither on the number of rows nor on the thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace baton {

constexpr std::size_t kColumns = 16;  // of a panel

// A float, two bfloat16 or four bytes; may alias any type.
using Unit = std::uint32_t __attribute__((may_alias));

inline std::size_t divided_up(std::size_t number, std::size_t by) { return (number + by - 1) / by; }

struct Weight {
    const Unit* panels;  // [ceil(num_outputs / 16), num_units, 16]
    std::size_t num_outputs;
    std::size_t num_inputs;
    std::size_t inputs_of_unit;   // 1, 2 or 4
    const float* scales;          // for bytes: one per output of the panels; otherwise null
    const std::int32_t* offsets;  // for bytes: excess of a sum because rows are stored around 128

    bool is_floats() const { return inputs_of_unit == 1; }
    bool is_bytes() const { return inputs_of_unit == 4; }
    std::size_t num_units() const { return num_inputs / inputs_of_unit; }
    std::size_t panel_units() const { return num_units() * kColumns; }
    std::size_t num_panels() const { return divided_up(num_outputs, kColumns); }
    const Unit* panel(std::size_t index) const { return panels + index * panel_units(); }
};

// Product with one weight. Rows are contiguous.
struct Task {
    Weight weight;
    const std::uint16_t* bias;  // [num_outputs] bfloat16, or null
    const Unit* rows;           // [num_rows, units of a row]: as the instruction set's `convert` leaves them
    const float* row_scales;    // [num_rows], of bytes
    void* result;               // [num_rows, columns of the result]: floats if the weight is in floats, otherwise bfloat16
    std::size_t num_rows;
    std::size_t stride = 0;  // of the result's rows, for products that are added to it
};

// Some rows and some columns' steps of a task.
struct Share {
    std::size_t task, first_step, end_step, first_row, end_row;
};

}  // namespace baton
