! Burns CPU in a procedure of a module, for ever.
module work
contains
  recursive subroutine burn(total)
    integer(8), intent(inout) :: total
    integer(8), volatile :: i
    do i = 1, 200000
      total = total + mod(i, 7_8)
    end do
  end subroutine burn
end module work

program planted
  use work
  integer(8) :: total
  total = 0
  write (*, '(a)') 'ready'
  flush (6)
  do
    call burn(total)
  end do
end program planted
