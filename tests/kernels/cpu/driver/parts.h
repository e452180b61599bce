// The parts of the driver; those of kernels check the instruction set that serves.
#pragma once

// forking: also in forked children, which ThreadSanitizer does not follow
void check_threads(bool forking);
void check_quantized();
void check_dense();
void check_rows();
void check_recurrence();
void check_sampling();
void check_attention();
