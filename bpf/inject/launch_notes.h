/* What is known of each launch until its record comes, by correlation id (launch_notes.c). */
#ifndef GPUPROF_LAUNCH_NOTES_H
#define GPUPROF_LAUNCH_NOTES_H

#include <stdint.h>

/* A launch's call was entered, in the NVTX ranges that are open on this thread; `left_out`: its stack is, on purpose. */
void launch_note(uint32_t correlation, uint64_t entered, int left_out);

/* What was noted of the launch with this correlation id: when its call was entered, 0 where nothing is known; whether its stack was left
 * out on purpose; and the path of the NVTX ranges that it was in. */
uint64_t launch_noted(uint32_t correlation, uint32_t epoch, uint16_t *left_out, uint16_t *path);

#endif
