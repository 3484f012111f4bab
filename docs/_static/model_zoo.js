// Search, sorting and pages of the table of all models, by https://datatables.net.
new DataTable('#all-models-table', {
  order: [],
  pageLength: 25,
  lengthMenu: [25, 100, -1],
  language: {search: 'Search', searchPlaceholder: 'detection ravlt', lengthMenu: '_MENU_ rows',
             lengthLabels: {'-1': 'all'}},
});
