/* A libcuda.so.1 whose memory is the process's own. STUB_FAILS names the call that fails. */
#include <stdlib.h>
#include <string.h>

static int fails(const char *name) {
    const char *wanted = getenv("STUB_FAILS");
    return wanted && !strcmp(wanted, name) ? 999 : 0;
}
int cuInit(unsigned flags) { return flags ? 1 : fails("cuInit"); }
int cuDeviceGet(int *device, int ordinal) { *device = 7 + ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)8; return device == 7 ? 0 : 101; }
int cuDevicePrimaryCtxRelease(int device) { return device == 7 ? 0 : 101; }
int cuCtxSetCurrent(void *context) { return context == (void *)8 ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long *place, size_t bytes) {
    *place = (unsigned long long)malloc(bytes);
    return fails("cuMemAlloc");
}
int cuMemsetD32_v2(unsigned long long place, unsigned value, size_t words) {
    for (size_t i = 0; i < words; i++) ((unsigned *)place)[i] = value;
    if (fails("bit")) ((unsigned *)place)[words - 1] ^= 1;
    return 0;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuMemFree_v2(unsigned long long place) { free((void *)place); return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 999 ? "unknown error" : "other"; return 0; }
