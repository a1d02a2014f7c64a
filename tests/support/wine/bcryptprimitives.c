/* The one function of Windows that Rust's library needs and wine before 8.9 lacks: random bytes.
Part windows of ./check builds this file and puts the result into the wine prefix. */
#include <stddef.h>

unsigned char __stdcall SystemFunction036(void *buffer, unsigned long length);

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *buffer, size_t length) {
    while (length > 0) {
        unsigned long part = length > 4096 ? 4096 : (unsigned long)length;
        if (!SystemFunction036(buffer, part)) return 0;
        buffer += part;
        length -= part;
    }
    return 1;
}
