// The parts of the driver.
#pragma once

// forking: also in forked children, which ThreadSanitizer does not follow
void check_threads(bool forking);
