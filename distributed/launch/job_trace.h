// SPDX-License-Identifier: Apache-2.0
// The traces of all ranks (distributed/record/trace.h) in one file.
#pragma once

namespace xylem {

// Collective over the job: every rank writes <file>.rank<r>, which rank 0 puts together. Times of different hosts are
// aligned at trace::start(). Nothing where no trace is on.
void finish_trace();

}  // namespace xylem
