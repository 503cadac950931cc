// Valid JPEGs with much of what the format allows, for mutation to start from.
#pragma once

#include "fuzz_input.h"

namespace fuzz {

// A small image of random coefficients, sampling, restart interval, tables and process; most are baseline. Empty where
// libjpeg would not write what was drawn.
Bytes make_jpeg(Random &random);

// The coefficients of an image written again with another restart interval, tables or process; empty where libjpeg can't
// read it.
Bytes recode_jpeg(const Bytes &jpeg, Random &random);

}  // namespace fuzz
